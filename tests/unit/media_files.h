/** What the tests of the media room share: a folder of their own, files in it, material of known
 * content, the ffmpeg program.
 *
 * A test program's group is set up by make_folder and torn down by remove_folder.
 */
#ifndef H3_TESTS_MEDIA_FILES_H
#define H3_TESTS_MEDIA_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "encode.h"
#include "status.h"

extern char work[]; ///< the folder

int make_folder(void **state);
int remove_folder(void **state);

#define assert_ok(expr)                                         \
    do {                                                        \
        const h3_status s_ = (expr);                            \
        if (s_ != H3_OK) fail_msg("%s: %s", #expr, h3_error()); \
    } while (0)
#define assert_fails(code, word, expr)                                                        \
    do {                                                                                      \
        const h3_status s_ = (expr);                                                          \
        if (s_ != (code) || !strstr(h3_error(), word))                                        \
            fail_msg("%s gave %s \"%s\", expected %s with \"%s\"", #expr, h3_status_name(s_), \
                     h3_error(), h3_status_name(code), word);                                 \
    } while (0)

/** Path inside the folder; a ring of 8. */
const char *at(const char *fmt, ...) H3_PRINTF(1, 2);

/** Entries of a folder; -1 where there is none. */
int count_files(const char *dir);

void write_file(const char *path, const void *data, size_t n);
void write_text(const char *path, const char *text);
uint8_t *read_file(const char *path, size_t *n); ///< free() it

uint8_t *noise(size_t n, unsigned seed); ///< free() it

/** Whether there is an ffmpeg program; says so when there is none. */
bool has_ffmpeg(void);

/** ffmpeg with the given arguments, in the folder; false when this build cannot do it. */
bool ffmpeg(const char *fmt, ...) H3_PRINTF(1, 2);

/* ---- moving pictures whose gray level tells the frame, sound of two tones */

enum { SIDE = 64 };

int gray_of(int64_t i);
void write_frames(h3_mux *m, int64_t n);

/** [2, n], left a tone of 440 Hz, right one of 880 Hz, to the very end; free() it. */
float *tones(int64_t n);

double rms_error(const float *a, const float *b, int64_t n);

/** A file of `frames` pictures and `samples` of sound; `with` NULL: as usual. */
void write_video(const char *path, int64_t frames, int64_t samples, const h3_mux_opt *with);

#endif
