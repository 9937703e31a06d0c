pkg_check_modules(AV REQUIRED IMPORTED_TARGET libavformat libavcodec libavutil libswscale libswresample)
room(media
     FILES av_util.c clip.c encode.c encode_bytes.c frame_files.c image.c image_head.c media_file.c pixels.c probe.c
           resample.c resize.c sound.c vision_rows.c
     USES base
     LIBS PkgConfig::AV PkgConfig::JANSSON)
if(EXISTS ${CMAKE_SOURCE_DIR}/tests/unit/test_media.c)
    unit_test(media FILES tests/unit/test_media.c USES media base)
endif()
