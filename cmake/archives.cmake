# HDF5 and zlib from their archives, where the system has them and a program with them runs: the
# shared HDF5 brings in curl and what that needs, which take 7 ms to load and would fill a wheel.
include(CheckCXXSourceRuns)
add_library(kvsim_hdf5 INTERFACE)
block()
  set(CMAKE_REQUIRED_INCLUDES ${HDF5_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES)
  foreach(name hdf5_hl hdf5 sz aec z)
    find_library(KVSIM_ARCHIVE_${name} NAMES lib${name}.a PATH_SUFFIXES hdf5/serial)
    mark_as_advanced(KVSIM_ARCHIVE_${name})
    list(APPEND CMAKE_REQUIRED_LIBRARIES ${KVSIM_ARCHIVE_${name}})
  endforeach()
  set(found TRUE)
  if("${CMAKE_REQUIRED_LIBRARIES}" MATCHES NOTFOUND)
    set(found FALSE)
  endif()
  list(APPEND CMAKE_REQUIRED_LIBRARIES ${CMAKE_DL_LIBS} m)
  if(KVSIM_ARCHIVES AND found AND NOT KVSIM_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    # H5check() ends the program where the headers are of another version.
    check_cxx_source_runs("#include <hdf5.h>
      #include <hdf5_hl.h>
      int main() { return H5check() < 0 || H5open() < 0 || H5DSis_scale(0) > 0; }"
      KVSIM_HDF5_FROM_ARCHIVES)
  endif()
  if(KVSIM_HDF5_FROM_ARCHIVES)
    target_link_libraries(kvsim_hdf5 INTERFACE ${CMAKE_REQUIRED_LIBRARIES})
    target_include_directories(kvsim_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
  else()
    target_link_libraries(kvsim_hdf5 INTERFACE hdf5::hdf5 hdf5::hdf5_hl ZLIB::ZLIB)
  endif()
endblock()
