# Memory, streaming, and runs that survive: programs that link the whole library, inside included.
set(whole_library h3_pipeline h3_builtin h3_sampler h3_nets_dit h3_nets_encoder h3_nets_video_vae
                  h3_nets_audio_vae h3_weights h3_media h3_text h3_plan h3_tensor h3_base h3_backends)
function(whole_test name)
    add_executable(h3av-${name} tests/e2e/${name}.c)
    target_link_libraries(h3av-${name} PRIVATE ${whole_library} PkgConfig::CMOCKA)
    target_compile_definitions(h3av-${name} PRIVATE H3_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    add_test(NAME ${name} COMMAND h3av-${name} ${ARGN})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
if(TARGET h3 AND CMOCKA_FOUND)
    whole_test(memory)
    whole_test(resume)
    target_link_options(h3av-resume PRIVATE -Wl,--wrap=avcodec_send_frame)
    whole_test(keep)
    # The example as a stranger builds it: the library and its header.
    add_executable(h3av-example-frames examples/frames.c)
    target_link_libraries(h3av-example-frames PRIVATE h3)
    whole_test(frames)
    set_tests_properties(frames PROPERTIES ENVIRONMENT
                         "OMP_WAIT_POLICY=passive;H3_EXAMPLE_FRAMES=$<TARGET_FILE:h3av-example-frames>")
    target_link_options(h3av-keep PRIVATE -Wl,--wrap=h3_file_map -Wl,--wrap=h3_poison_check
                        -Wl,--wrap=h3_bind -Wl,--wrap=h3_dit_modulate)
endif()
add_test(NAME sweep COMMAND ${CMAKE_SOURCE_DIR}/tests/sweep_test.sh ${CMAKE_SOURCE_DIR})
# Tables of forms that are damaged, in place of those of the build.
if(TARGET h3 AND CMOCKA_FOUND)
    set(all_but_builtin ${whole_library})
    list(REMOVE_ITEM all_but_builtin h3_builtin)
    unit_test(synth FILES tests/unit/test_synth.c LIBS ${all_but_builtin})
endif()
if(TARGET h3_weights AND CMOCKA_FOUND)
    unit_test(store FILES tests/unit/test_store.c USES weights tensor base LIBS PkgConfig::JANSSON)
endif()
