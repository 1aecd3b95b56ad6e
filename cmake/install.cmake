# cmake --install build/release --prefix PREFIX installs programs, libraries, headers and the files for find_package(Anymesh).
# PREFIX may be moved afterwards. Everything that is installed must have been built.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Anymesh)

# Exports the library NAME or anymesh_NAME as Anymesh::NAME.
set(libraries format package_settings data inputs config gpt_config hf)
set(programs ds_to_universal ds_reshard zero_to_fp32 preprocess_data plot_loss plot_figure report ckpt hf_convert plan)
if(NOT ANYMESH_TOOLS_ONLY)
  list(APPEND libraries framework gpt generate)
  list(APPEND programs pretrain_gpt generate)
  install(FILES tools/generate/generate.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/anymesh/tools/generate)
  # Keeps the rpath of the build. Installing would remove MPI's, and would fail on LibTorch's, which CMake does not know.
  set_target_properties(pretrain_gpt generate PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON)
endif()
foreach(name ${libraries})
  set(library anymesh_${name})
  if(name STREQUAL framework)
    set(library anymesh)
  endif()
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${library} PUBLIC cxx_std_20)
  install(TARGETS ${library} EXPORT AnymeshTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/anymesh)
endforeach()
install(TARGETS ${programs})
install(DIRECTORY framework models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/anymesh FILES_MATCHING PATTERN "*.h")
install(FILES tools/hf/args.h tools/hf/export.h tools/hf/tensors.h tools/hf/tokenizer_files.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/anymesh/tools/hf)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(cmake/AnymeshConfig.cmake.in AnymeshConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(AnymeshConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/AnymeshConfig.cmake ${PROJECT_BINARY_DIR}/AnymeshConfigVersion.cmake cmake/versions.cmake
              cmake/libtorch.cmake cmake/cuda.cmake cmake/packages.cmake DESTINATION ${package_dir})
install(EXPORT AnymeshTargets NAMESPACE Anymesh:: DESTINATION ${package_dir})
