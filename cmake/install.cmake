# `cmake --install BUILD --prefix DIR`: the program; the figures that `kvsim plot` runs, which it finds in
# ../share/kvsim from where it is; the scripts that capture traces and use kept sets; the documentation.
include(GNUInstallDirs)
set_target_properties(kvsim PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS kvsim RUNTIME)
# What a Python wheel holds beside the package (pyproject.toml).
install(TARGETS kvsim RUNTIME DESTINATION bin COMPONENT wheel EXCLUDE_FROM_ALL)
install(FILES data/sample.h5 DESTINATION data COMPONENT wheel EXCLUDE_FROM_ALL)
install(DIRECTORY data/prompts data/searches data/sweeps DESTINATION data COMPONENT wheel
        EXCLUDE_FROM_ALL)
install(DIRECTORY plots python data DESTINATION ${CMAKE_INSTALL_DATADIR}/kvsim
        USE_SOURCE_PERMISSIONS PATTERN __pycache__ EXCLUDE)
install(FILES README.md CHANGELOG.md CITATION.cff LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
