pkg_check_modules(AV REQUIRED IMPORTED_TARGET libavformat libavcodec libavutil libswscale libswresample)
room(media FILES av_util.c encode.c USES base LIBS PkgConfig::AV)
