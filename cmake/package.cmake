# What scripts/package packs: `cmake --install BUILD --component packed --prefix FOLDER` puts the programs there, and they find
# shared libraries in FOLDER/lib/tidepool (an archive), or in the wheel of PyTorch that lies beside FOLDER (a wheel).
if(NOT TARGET tidepool-worker)
  return()
endif()
set(packed tidepool tidepool-worker)
if(TARGET tidepool_cuda_module)
  list(APPEND packed tidepool_cuda_module)
endif()
if(TARGET tidepool_s3_module)
  list(APPEND packed tidepool_s3_module)
endif()
set_target_properties(${packed} PROPERTIES
  INSTALL_RPATH "$ORIGIN/../lib/tidepool:$ORIGIN/../../torch/lib:$ORIGIN/../../torch.libs:$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../pyarrow")
install(TARGETS ${packed} RUNTIME DESTINATION bin COMPONENT packed LIBRARY DESTINATION bin COMPONENT packed)
add_custom_target(packed DEPENDS ${packed})
