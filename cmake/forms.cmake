# Published forms of checkpoints, run: the networks off every sample.
if(CMOCKA_FOUND AND TARGET h3_nets_dit AND TARGET h3_nets_encoder AND TARGET h3_nets_video_vae AND TARGET h3_nets_audio_vae)
    foreach(part dit encoder vae data)
        unit_test(forms_${part} FILES tests/unit/test_forms_${part}.c tests/unit/forms.c ${test_models}
                  USES nets_dit nets_encoder nets_video_vae nets_audio_vae weights plan tensor base
                  LIBS PkgConfig::JANSSON m)
    endforeach()
endif()
# The same from the outside, and every hostile file through the program.
find_program(H3_PYTHON3 python3)
if(TARGET h3av AND H3_PYTHON3)
    foreach(name formats hostile)
        add_test(NAME e2e_${name} COMMAND ${H3_PYTHON3} ${CMAKE_SOURCE_DIR}/tests/e2e/${name}.py $<TARGET_FILE:h3av>
                                          ${CMAKE_SOURCE_DIR})
        set_tests_properties(e2e_${name} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
        if(H3_SANITIZE)
            set_tests_properties(e2e_${name} PROPERTIES ENVIRONMENT H3_SANITIZED=1)
        endif()
    endforeach()
endif()
