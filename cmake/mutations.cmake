# Slow on purpose and not part of ctest: does a golden fail when the code takes a known wrong turn?
add_custom_target(mutations COMMAND ${CMAKE_SOURCE_DIR}/tests/mutations.sh USES_TERMINAL VERBATIM)
