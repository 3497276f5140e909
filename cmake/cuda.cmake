# The CUDA backend, for compute capability 8.0, 9.0 and, through PTX, whatever comes later.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
if(KVSIM_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${KVSIM_CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)   # CMake 3.25 does not know it of nvcc 13
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sim/backend/cuda/*.cu
     ${CMAKE_SOURCE_DIR}/sim/backend/cuda/*.cpp)
add_library(kvsim_cuda OBJECT ${cuda_sources})
target_include_directories(kvsim_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_options(kvsim_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall>)
target_link_libraries(kvsim_cuda PRIVATE CUDA::cudart_static CUDA::cublas fmt::fmt)
set_source_files_properties(${CMAKE_SOURCE_DIR}/sim/backend/make_cuda.cpp PROPERTIES
                            COMPILE_DEFINITIONS KVSIM_CUDA)
target_link_libraries(kvsim_all INTERFACE $<TARGET_OBJECTS:kvsim_cuda> CUDA::cudart_static
                      CUDA::cublas)
