if(EXISTS ${CMAKE_SOURCE_DIR}/src/text/prompt.c)
    room(text FILES tokenizer.c tokenizer_load.c bpe.c split.c unicode.c unicode_tables.c json_pull.c
                    prompt.c USES base)
endif()
if(EXISTS ${CMAKE_SOURCE_DIR}/tests/unit/test_text.c)
    unit_test(text FILES tests/unit/test_text.c USES text LIBS PkgConfig::JANSSON)
endif()
