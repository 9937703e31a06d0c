pkg_check_modules(AV REQUIRED IMPORTED_TARGET libavformat libavcodec libavutil libswscale libswresample)
room(media
     FILES av_util.c clip.c encode.c encode_bytes.c frame_files.c image.c image_head.c media_file.c pixels.c probe.c
           resample.c resize.c sound.c vision_rows.c
     USES base
     LIBS PkgConfig::AV PkgConfig::JANSSON)
foreach(part out pictures clips sounds)
    unit_test(media_${part} FILES tests/unit/test_media_${part}.c tests/unit/media_files.c USES media base)
endforeach()
