# Libraries from their archives where the system has them and a program with them runs: libhdf5.so
# alone brings in 35 others, which take a command 10 ms to load, and a wheel would have to carry them.
#   kvsim_library(NAME "a program that needs it" ARCHIVES name... SHARED target...)
include(CheckCXXSourceRuns)
function(kvsim_library name source)
  cmake_parse_arguments(ARG "" "" "ARCHIVES;SHARED" ${ARGN})
  add_library(${name} INTERFACE)
  set(found)
  foreach(archive ${ARG_ARCHIVES})
    find_library(KVSIM_ARCHIVE_${archive} NAMES lib${archive}.a HINTS ${Boost_LIBRARY_DIRS}
                 PATH_SUFFIXES hdf5/serial)
    mark_as_advanced(KVSIM_ARCHIVE_${archive})
    list(APPEND found ${KVSIM_ARCHIVE_${archive}})
  endforeach()
  set(CMAKE_REQUIRED_LIBRARIES ${found} ${CMAKE_DL_LIBS} m)
  set(CMAKE_REQUIRED_INCLUDES)
  foreach(target ${ARG_SHARED})
    get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(folders)
      list(APPEND CMAKE_REQUIRED_INCLUDES ${folders})
    endif()
  endforeach()
  if(KVSIM_ARCHIVES AND NOT KVSIM_SANITIZE AND NOT CMAKE_CROSSCOMPILING
     AND NOT "${found}" MATCHES NOTFOUND)
    check_cxx_source_runs("${source}" ${name}_from_archives)
  endif()
  if(${name}_from_archives)
    target_link_libraries(${name} INTERFACE ${CMAKE_REQUIRED_LIBRARIES})
    target_include_directories(${name} SYSTEM INTERFACE ${CMAKE_REQUIRED_INCLUDES})
  else()
    target_link_libraries(${name} INTERFACE ${ARG_SHARED})
  endif()
endfunction()

kvsim_library(kvsim_hdf5 "#include <hdf5.h>
  #include <hdf5_hl.h>
  int main() { return H5check() < 0 || H5open() < 0 || H5DSis_scale(0) > 0; }"
  ARCHIVES hdf5_hl hdf5 sz aec z SHARED hdf5::hdf5 hdf5::hdf5_hl ZLIB::ZLIB)
kvsim_library(kvsim_arguments "#include <boost/program_options.hpp>
  int main() { boost::program_options::options_description all(\"options\"); }"
  ARCHIVES boost_program_options SHARED Boost::program_options)
kvsim_library(kvsim_xxhash "#include <xxhash.h>
  int main() { return XXH_versionNumber() != XXH_VERSION_NUMBER; }"
  ARCHIVES xxhash SHARED PkgConfig::XXHASH)
