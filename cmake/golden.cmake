# h3av-golden: every runner whose source exists. golden_program(NAME KINDS ...) also lets one room
# build a program with its own kinds only: h3av-golden-plan, h3av-golden-dit, ...
function(golden_program target)
    cmake_parse_arguments(G "" "" "KINDS" ${ARGN})
    add_executable(${target} EXCLUDE_FROM_ALL tests/golden/golden.c tests/golden/golden_main.c
                   ${test_models})
    target_link_libraries(${target} PRIVATE h3_tensor h3_backends h3_base PkgConfig::JANSSON)
    foreach(kind ${G_KINDS})
        string(TOUPPER ${kind} upper)
        target_sources(${target} PRIVATE tests/golden/golden_${kind}.c)
        target_compile_definitions(${target} PRIVATE GOLDEN_${upper}=1)
        target_link_libraries(${target} PRIVATE ${golden_rooms_${kind}})
    endforeach()
    target_compile_definitions(${target} PRIVATE H3_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
    target_include_directories(${target} PRIVATE tests/golden tests/models)
endfunction()

# Which rooms a runner needs beside tensor and base.
set(golden_rooms_tables h3_plan h3_media h3_base)
set(golden_rooms_plan h3_plan h3_base)
set(golden_rooms_text h3_text h3_base)
set(golden_rooms_media h3_media)
set(golden_rooms_dit h3_nets_dit h3_sampler h3_plan h3_weights h3_backends)
set(golden_rooms_encoder h3_nets_encoder h3_weights h3_backends)
set(golden_rooms_video_vae h3_nets_video_vae h3_plan h3_weights h3_backends)
set(golden_rooms_audio_vae h3_nets_audio_vae h3_plan h3_weights h3_backends)
set(golden_rooms_pipeline h3_pipeline h3_builtin h3_sampler h3_nets_dit h3_nets_encoder h3_nets_video_vae
                          h3_nets_audio_vae h3_weights h3_media h3_text h3_plan h3_backends)

set(golden_kinds)
foreach(kind tables plan text media dit encoder video_vae audio_vae pipeline)
    if(EXISTS ${CMAKE_SOURCE_DIR}/tests/golden/golden_${kind}.c)
        list(APPEND golden_kinds ${kind})
        string(REPLACE "_" "-" dashed ${kind})
        golden_program(h3av-golden-${dashed} KINDS ${kind})
    endif()
endforeach()

# The program that knows every kind, and one test per folder of golden files.
if(TARGET h3_pipeline AND CMOCKA_FOUND)
    golden_program(h3av-golden KINDS ${golden_kinds})
    set_target_properties(h3av-golden PROPERTIES EXCLUDE_FROM_ALL OFF)
    foreach(folder packing schedule tokenizer encoder dit video_vae audio_vae media pipeline)
        if(EXISTS ${CMAKE_SOURCE_DIR}/tests/data/${folder})
            add_test(NAME golden_${folder} COMMAND h3av-golden tests/data/${folder}
                     WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
        endif()
    endforeach()
endif()
