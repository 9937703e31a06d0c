# Memory, streaming, and runs that survive: programs that link the whole library.
if(TARGET h3 AND CMOCKA_FOUND)
    add_executable(h3av-memory tests/e2e/memory.c)
    target_link_libraries(h3av-memory PRIVATE h3_pipeline h3_builtin h3_sampler h3_nets_dit h3_nets_encoder
                          h3_nets_video_vae h3_nets_audio_vae h3_weights h3_media h3_text h3_plan h3_tensor h3_base
                          h3_backends PkgConfig::CMOCKA)
    target_compile_definitions(h3av-memory PRIVATE H3_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME memory COMMAND h3av-memory)
    set_tests_properties(memory PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
endif()
