# libtidepool_cuda.so: GPUs as devices where LibTorch has its CUDA part, and sums over them by NCCL where nccl.h is, too. Built where
# nvcc is found; a machine without it configures and builds all the same. nvcc is called directly, so that a
# compiler that CMake cannot use as a language costs a message and not the configuration.
find_program(TIDEPOOL_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT TIDEPOOL_NVCC)
  message(STATUS "CUDA module: not built, nvcc was not found")
  return()
endif()
get_filename_component(cuda_bin ${TIDEPOOL_NVCC} REALPATH)
get_filename_component(cuda_bin ${cuda_bin} DIRECTORY)
get_filename_component(cuda_root ${cuda_bin}/.. ABSOLUTE)
find_path(TIDEPOOL_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
# The run time that LibTorch itself uses comes first, so that a process has one.
find_library(TIDEPOOL_CUDART NAMES cudart libcudart.so.13 HINTS ${TORCH_ROOT}/../nvidia/cu13/lib ${cuda_root}/lib64
  ${cuda_root}/targets/x86_64-linux/lib)
if(NOT TIDEPOOL_CUDA_INCLUDE OR NOT TIDEPOOL_CUDART)
  message(STATUS "CUDA module: not built, ${TIDEPOOL_NVCC} has no cuda_runtime_api.h or libcudart beside it")
  return()
endif()

# Ampere and Hopper as machine code, and the code of Ampere as PTX for what comes after: two passes of the compiler.
set(TIDEPOOL_GENCODE -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
  CACHE STRING "nvcc -gencode arguments")
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/cuda/kernels/*.cu)
file(GLOB kernel_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/cuda/kernels/*.h)
list(APPEND kernel_headers ${CMAKE_SOURCE_DIR}/core/cuda/attention_plan.h ${CMAKE_SOURCE_DIR}/core/cuda/device_code.h ${CMAKE_SOURCE_DIR}/core/cuda/limits.h)
set(kernel_objects)
foreach(source ${kernel_sources})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  # ptxas' report of registers and spills goes to a file that a test reads; what else nvcc says is shown.
  set(report ${CMAKE_CURRENT_BINARY_DIR}/${name}.resources)
  add_custom_command(OUTPUT ${object} BYPRODUCTS ${report}
    COMMAND sh -c "\"$@\" 2> ${report} || { cat ${report} >&2; exit 1; }; grep -v -e ptxas -e 'bytes stack frame' ${report} >&2 || true" nvcc
      ${TIDEPOOL_NVCC} -std=c++20 -O3 -lineinfo -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIC,-fvisibility=hidden
      ${TIDEPOOL_GENCODE} -Xptxas -v -I${CMAKE_SOURCE_DIR} -c ${source} -o ${object}
    DEPENDS ${source} ${kernel_headers} ${CMAKE_SOURCE_DIR}/core/device/arguments.h ${CMAKE_SOURCE_DIR}/core/device/kv_run.h
    COMMENT "nvcc ${name}.cu" VERBATIM)
  list(APPEND kernel_objects ${object})
endforeach()

set(module_sources ${CMAKE_SOURCE_DIR}/core/cuda/module_entry.cc ${kernel_objects})
set(module_has_device OFF)
set(TIDEPOOL_CUDA_HAVE_NCCL OFF CACHE INTERNAL "the module sums by NCCL")
if(TIDEPOOL_HAVE_TORCH AND EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  set(module_has_device ON)
  list(APPEND module_sources ${CMAKE_SOURCE_DIR}/core/cuda/capturing_device.cc ${CMAKE_SOURCE_DIR}/core/cuda/device_entry.cc)
  find_path(TIDEPOOL_NCCL_INCLUDE nccl.h HINTS ${TORCH_ROOT}/../nvidia/nccl/include ${TIDEPOOL_CUDA_INCLUDE})
  if(TIDEPOOL_NCCL_INCLUDE AND EXISTS ${TIDEPOOL_CUDA_INCLUDE}/cusolverDn.h)
    set(TIDEPOOL_CUDA_HAVE_NCCL ON CACHE INTERNAL "the module sums by NCCL")
    list(APPEND module_sources ${CMAKE_SOURCE_DIR}/core/cuda/nccl_sum.cc)
  else()
    message(STATUS "CUDA module: without NCCL, nccl.h or cusolverDn.h was not found (packages libnccl-dev, libcusolver-dev of the toolkit)")
  endif()
else()
  message(STATUS "CUDA module: kernels alone, LibTorch has no libtorch_cuda.so")
endif()

# The loader library is tidepool_cuda; the module's file is libtidepool_cuda.so in the folder of the binaries.
add_library(tidepool_cuda_module SHARED ${module_sources})
set_target_properties(tidepool_cuda_module PROPERTIES OUTPUT_NAME tidepool_cuda CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
# The oldest GPU that this code runs on.
string(REGEX MATCHALL "compute_[0-9]+" oldest "${TIDEPOOL_GENCODE}")
list(TRANSFORM oldest REPLACE "compute_" "")
list(SORT oldest COMPARE NATURAL)
list(GET oldest 0 oldest)
target_compile_definitions(tidepool_cuda_module PRIVATE TIDEPOOL_CUDA_OLDEST=${oldest})
target_include_directories(tidepool_cuda_module PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(tidepool_cuda_module SYSTEM PRIVATE ${TIDEPOOL_CUDA_INCLUDE})
target_link_libraries(tidepool_cuda_module PRIVATE tidepool_cuda_interface ${TIDEPOOL_CUDART})
if(module_has_device)
  # What libtorch_cuda itself needs (cuDNN, cuBLAS, ...) is looked up where it runs, not here. No symbol of it need be
  # named: it registers itself.
  target_link_libraries(tidepool_cuda_module PRIVATE tidepool_cuda_device tidepool_torch
    -Wl,--no-as-needed ${TORCH_ROOT}/lib/libtorch_cuda.so ${TORCH_ROOT}/lib/libc10_cuda.so -Wl,--as-needed)
  target_link_options(tidepool_cuda_module PRIVATE -Wl,--allow-shlib-undefined
    -Wl,--exclude-libs,ALL)  # its classes are its own, whatever the program exports
endif()
if(TIDEPOOL_CUDA_HAVE_NCCL)
  target_include_directories(tidepool_cuda_module SYSTEM PRIVATE ${TIDEPOOL_NCCL_INCLUDE})
  target_compile_definitions(tidepool_cuda_module PRIVATE USE_C10D_NCCL)
endif()
