/**
 * An open h3_media_src: its bytes, and libav's view of them as a container.
 */
#ifndef H3_MEDIA_FILE_H
#define H3_MEDIA_FILE_H

#include <libavformat/avformat.h>
#include <stdint.h>

#include "file.h"
#include "source.h"

typedef struct h3_media_file_data {
    const uint8_t *data;
    size_t size;
    const char *name; ///< for messages
    h3_file *map;     ///< NULL when the bytes are the caller's
} h3_media_file_data;

H3_NODISCARD h3_status h3_media_file_open(h3_media_file_data *f, h3_media_src src);
void h3_media_file_close(h3_media_file_data *f);

/** A demuxer over the bytes. Only formats that hold all their data themselves are tried; nothing
 * else on the machine or the net can be opened through a crafted file. */
typedef struct h3_demux {
    h3_media_file_data file;
    AVFormatContext *fmt;
    AVIOContext *io;
    size_t at; // read position
} h3_demux;

H3_NODISCARD h3_status h3_demux_open(h3_demux **out, h3_media_src src);
void h3_demux_close(h3_demux **d);

/** Stream of moving pictures (covers do not count) or of sound; -1 when there is none. */
int h3_demux_video(const h3_demux *d);
int h3_demux_audio(const h3_demux *d);

/** Turns the display matrix of a stream into an EXIF orientation 1..8 (1 when there is none or it
 * is no multiple of 90 degrees). */
int h3_demux_orientation(const AVStream *s);

#endif
