room(text FILES tokenizer.c tokenizer_load.c bpe.c split.c unicode.c unicode_tables.c json_pull.c
                prompt.c USES base)
# The goldens of this room run inside its unit test; of the tensor room they need the views only.
unit_test(text FILES tests/unit/test_text.c ${test_models} tests/golden/golden.c tests/golden/golden_text.c
                     src/tensor/tensor.c USES text base LIBS PkgConfig::JANSSON)
if(TARGET test_text)
    target_include_directories(test_text PRIVATE tests/golden src/tensor)
endif()
