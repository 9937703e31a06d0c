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
endif()
