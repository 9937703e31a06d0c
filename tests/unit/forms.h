/** What the tests of checkpoint forms share: forwards whose inputs depend on sizes alone, of each
 * network from a path, and ways to say how far two of them are apart.
 *
 * A test program's group is set up by forms_open and torn down by forms_close: one device of one
 * thread, one folder. Paths that are returned are malloc'd.
 */
#ifndef H3_TESTS_FORMS_H
#define H3_TESTS_FORMS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "dev.h"

#define SAMPLES H3_SOURCE_DIR "/tests/data/formats/samples/"
#define TINY    H3_SOURCE_DIR "/tests/data/tiny-h3/"

extern h3_dev *dev;
extern char folder[];

int forms_open(void **state);
int forms_close(void **state);

#define must(call) must_at((call), __LINE__)
void must_at(h3_status st, int line);

char *in_folder(const char *name);

/* ---- the forwards; the caller frees .v */

typedef struct numbers {
    float *v;
    int64_t n;
} numbers;

/* NULL at the end of a list. */
typedef struct adapter {
    const char *path;
    float strength;
} adapter;

void add_all(h3_checkpoint *ck, const adapter *list);

numbers run_dit(const char *path, const h3_ckpt_opts *opts, const adapter *list, h3_dtype act);
numbers run_encoder(const char *path, const h3_ckpt_opts *opts, int select);
numbers run_video(const char *path, bool is_encoder);
numbers run_audio(const char *path, bool is_encoder);

/* Largest deviation, relative to the largest number; frees `a`. */
double apart(numbers a, const numbers *b);

/* Fails unless the bits are equal; frees `a`. */
void same_bits(numbers a, const numbers *b);

/* ---- files */

/* `path` decoded to f32 safetensors at folder/name. */
char *dump(const char *path, h3_role role, const h3_ckpt_opts *opts, const char *name);

/* `from` (a file) where `config` lies beside it. */
char *beside(const char *from, const char *config, const char *as);

/* A config.json for encoders with heads of 16: the samples' are narrower than the release's, so
 * their rotation has to be said. */
extern const char te_config_16[];

/* ---- the denoiser's samples */

/* What a sample was made from, where it is known. */
typedef enum against { NOTHING, FULL, FULL_ONE, CURVE_ONE, N_BASES } against;

enum { N_DITS = 12 };

/* `limit`: of the whole forward against the unquantized weights. */
extern const struct dit_sample {
    const char *file;
    against base;
    double limit;
} dits[N_DITS];

#endif
