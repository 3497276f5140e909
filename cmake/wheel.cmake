# The program as a Python wheel holds it (pyproject.toml): the objects of `kvsim`, linked with whatever
# static libraries this system has, so that little is left for auditwheel to bundle.
function(kvsim_static variable name)   # the archive of a library, or nothing
  find_library(KVSIM_STATIC_${name} NAMES lib${name}.a PATHS ${ARGN} PATH_SUFFIXES hdf5/serial)
  mark_as_advanced(KVSIM_STATIC_${name})
  if(KVSIM_STATIC_${name})
    set(${variable} ${KVSIM_STATIC_${name}} PARENT_SCOPE)
  else()
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()

set(wheel_archives)
foreach(library hdf5_hl hdf5 sz aec z boost_program_options xxhash)
  kvsim_static(archive ${library})
  if(NOT archive)
    message(STATUS "wheel: no static lib${library}, all libraries are linked as the program's are")
    set(wheel_archives)
    break()
  endif()
  list(APPEND wheel_archives ${archive})
endforeach()

add_executable(kvsim_wheel EXCLUDE_FROM_ALL cli/main.cpp)
set_target_properties(kvsim_wheel PROPERTIES OUTPUT_NAME kvsim
                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/wheel-program)
target_link_libraries(kvsim_wheel PRIVATE kvsim_options)
if(wheel_archives)
  # The archives first: what they resolve, no shared library is needed for.
  target_link_options(kvsim_wheel PRIVATE LINKER:--as-needed)
  foreach(folder core backend stages policy replay analysis io run commands)
    target_link_libraries(kvsim_wheel PRIVATE $<TARGET_OBJECTS:kvsim_${folder}>)
    target_include_directories(kvsim_wheel PRIVATE
                               $<TARGET_PROPERTY:kvsim_${folder},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  target_link_libraries(kvsim_wheel PRIVATE ${wheel_archives} fmt::fmt ${threads_target} m dl)
else()
  target_link_libraries(kvsim_wheel PRIVATE kvsim_all)
endif()
install(TARGETS kvsim_wheel RUNTIME DESTINATION bin COMPONENT wheel)
install(FILES data/sample.h5 DESTINATION data COMPONENT wheel)
install(DIRECTORY data/prompts data/searches data/sweeps DESTINATION data COMPONENT wheel)
