execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT COMMIT)
  set(COMMIT unknown)
endif()
file(CONFIGURE OUTPUT ${BINARY}/generated/kvsim_version.hpp CONTENT [[
#pragma once
#define KVSIM_VERSION "@VERSION@"
#define KVSIM_GIT_COMMIT "@COMMIT@"
#define KVSIM_BUILD "@BUILD@"
]] @ONLY)
