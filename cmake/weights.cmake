room(weights FILES name_table.c json.c manifest.c safetensors.c gguf.c names.c packing.c encoding.c checkpoint.c
                 bind.c expand.c ring.c shard.c store.c writer.c gguf_writer.c convert.c geometry.c lora.c qkv_check.c parts.c poison.c inspect.c usage.c
     USES tensor base LIBS PkgConfig::JANSSON)
if(CMOCKA_FOUND)
    unit_test(weights FILES tests/unit/test_weights.c ${test_models} USES weights tensor base
              LIBS PkgConfig::JANSSON)
    unit_test(manifests FILES tests/unit/test_manifests.c USES weights tensor base
              LIBS PkgConfig::JANSSON)
    unit_test(formats FILES tests/unit/test_formats.c ${test_models} USES weights tensor base
              LIBS PkgConfig::JANSSON)
endif()
