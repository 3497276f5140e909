# Writes generated/kvsim_version.hpp at build time, only when its content changes.
add_custom_target(kvsim_version_header
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DBINARY=${CMAKE_BINARY_DIR}
          -DVERSION=${PROJECT_VERSION} "-DBUILD=${CMAKE_BUILD_TYPE} ${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}"
          -P ${CMAKE_SOURCE_DIR}/cmake/write_version.cmake
  BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/kvsim_version.hpp)
add_dependencies(kvsim_options kvsim_version_header)
