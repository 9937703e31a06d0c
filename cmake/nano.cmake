# h3-nano: what the trained model shows and sounds like follows the prompt. Half a minute of processor time; under
# sanitizers many, for code that other tests run too.
if(TARGET h3av AND EXISTS ${CMAKE_SOURCE_DIR}/models/h3-nano)
    add_executable(nano_read tests/e2e/nano_read.c)
    target_link_libraries(nano_read PRIVATE m)
    if(NOT H3_SANITIZE)
        add_test(NAME e2e_nano COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/nano.sh $<TARGET_FILE:h3av>
                 $<TARGET_FILE:nano_read> ${CMAKE_SOURCE_DIR})
    endif()
endif()
