# A program that makes a model of tests/data that is not stored: for scripts.
add_executable(test_model tests/models/main.c ${test_models})
target_include_directories(test_model PRIVATE tests/models)
target_link_libraries(test_model PRIVATE h3_base PkgConfig::JANSSON m)

# The program and the library from the outside.
if(TARGET h3av)
    add_test(NAME e2e_cli COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/cli.sh $<TARGET_FILE:h3av> ${CMAKE_SOURCE_DIR})
    add_test(NAME e2e_media COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/media.sh $<TARGET_FILE:h3av> ${CMAKE_SOURCE_DIR})
    add_test(NAME e2e_cases COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/cases.sh $<TARGET_FILE:h3av> ${CMAKE_SOURCE_DIR})
    set_tests_properties(e2e_media PROPERTIES SKIP_RETURN_CODE 77)
    # Every symbol that leaves a file carries the prefix (dav1d's test).
    add_test(NAME symbols COMMAND sh -c "nm -g --defined-only $<TARGET_FILE:h3> | awk 'NF == 3 && $3 !~ /^(__odr_asan[.]|_)?h3_/ {print; bad = 1} END {exit bad}'")
endif()
