# The pipeline, and the small default model linked into the library: every file of the folder becomes
# read-only data of the program (.incbin), found by h3_file_map under "builtin:".
enable_language(ASM)
foreach(dir models/h3-nano tests/data/tiny-h3/original)
    if(NOT H3_BUILTIN_MODEL AND EXISTS ${CMAKE_SOURCE_DIR}/${dir})
        set(H3_BUILTIN_MODEL ${CMAKE_SOURCE_DIR}/${dir})
    endif()
endforeach()

file(GLOB_RECURSE builtin_files RELATIVE ${H3_BUILTIN_MODEL} CONFIGURE_DEPENDS ${H3_BUILTIN_MODEL}/*)
list(SORT builtin_files)
set(builtin_asm ".section .note.GNU-stack,\"\",%progbits\n.section .rodata\n")
set(builtin_c "/* Written by cmake/pipeline.cmake. */\n#include \"builtin.h\"\n\n")
set(builtin_rows "")
set(builtin_paths)
set(i 0)
foreach(f ${builtin_files})
    string(APPEND builtin_asm ".balign 64\n.globl h3_builtin_${i}\n.hidden h3_builtin_${i}\nh3_builtin_${i}:\n"
           ".incbin \"${H3_BUILTIN_MODEL}/${f}\"\n.globl h3_builtin_${i}_end\n.hidden h3_builtin_${i}_end\n"
           "h3_builtin_${i}_end:\n.byte 0\n")
    string(APPEND builtin_c "extern const unsigned char h3_builtin_${i}[], h3_builtin_${i}_end[];\n")
    string(APPEND builtin_rows "    {\"${f}\", h3_builtin_${i}, h3_builtin_${i}_end},\n")
    list(APPEND builtin_paths ${H3_BUILTIN_MODEL}/${f})
    math(EXPR i "${i} + 1")
endforeach()
# Tables of the published forms, for `h3av synth` and for random weights of tests and benchmarks.
set(synth_files ${CMAKE_SOURCE_DIR}/src/pipeline/synth.c ${CMAKE_SOURCE_DIR}/src/pipeline/synth_form.c)
set(form_rows "")
file(GLOB form_files RELATIVE ${CMAKE_SOURCE_DIR}/tests/data/formats/manifests CONFIGURE_DEPENDS
     ${CMAKE_SOURCE_DIR}/tests/data/formats/manifests/*.tsv)
set(form_count 0)
foreach(f ${form_files})
    get_filename_component(name ${f} NAME_WE)
    string(APPEND builtin_asm ".globl h3_form_${form_count}\n.hidden h3_form_${form_count}\nh3_form_${form_count}:\n"
           ".incbin \"${CMAKE_SOURCE_DIR}/tests/data/formats/manifests/${f}\"\n"
           ".globl h3_form_${form_count}_end\n.hidden h3_form_${form_count}_end\nh3_form_${form_count}_end:\n.byte 0\n")
    string(APPEND builtin_c "extern const unsigned char h3_form_${form_count}[], h3_form_${form_count}_end[];\n")
    string(APPEND form_rows "    {\"${name}\", h3_form_${form_count}, h3_form_${form_count}_end},\n")
    list(APPEND builtin_paths ${CMAKE_SOURCE_DIR}/tests/data/formats/manifests/${f})
    math(EXPR form_count "${form_count} + 1")
endforeach()
string(APPEND builtin_c "\nextern const h3_builtin_file h3_form_table[];\nextern const size_t h3_form_count;\n"
       "const h3_builtin_file h3_form_table[] = {\n${form_rows}};\nconst size_t h3_form_count = ${form_count};\n")
string(APPEND builtin_c "\nextern const h3_builtin_file h3_builtin_table[];\nextern const size_t h3_builtin_count;\n"
       "const h3_builtin_file h3_builtin_table[] = {\n${builtin_rows}};\nconst size_t h3_builtin_count = ${i};\n")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/builtin/builtin_data.S CONTENT "${builtin_asm}" @ONLY)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/builtin/builtin_table.c CONTENT "${builtin_c}" @ONLY)
set_source_files_properties(${CMAKE_BINARY_DIR}/builtin/builtin_data.S PROPERTIES OBJECT_DEPENDS "${builtin_paths}")
add_library(h3_builtin OBJECT ${CMAKE_BINARY_DIR}/builtin/builtin_data.S
                              ${CMAKE_BINARY_DIR}/builtin/builtin_table.c)
target_link_libraries(h3_builtin PRIVATE h3_base)
target_sources(h3 PRIVATE $<TARGET_OBJECTS:h3_builtin>)

room(pipeline FILES bench.c engine_parts.c fit.c fit_room.c fit_text.c h3.c job.c job_checkpoint.c job_checks.c job_events.c job_memory.c job_preview.c job_ranks.c ranks.c job_text.c job_encode.c job_sample.c kept.c latents.c media_tools.c memo.c model.c output.c
                    plan_json.c prepare.c preset.c request.c source.c st_write.c synth.c synth_form.c tags.c tools.c
     USES sampler nets_dit nets_encoder nets_video_vae nets_audio_vae weights media text plan tensor base
     LIBS PkgConfig::JANSSON m)
target_compile_definitions(h3_pipeline PRIVATE H3_HAVE_BUILTIN=1 H3_VERSION="${PROJECT_VERSION}")
