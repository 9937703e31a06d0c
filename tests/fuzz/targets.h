/**
 * Parsers of files from elsewhere, each as a function of bytes. The same table serves libFuzzer
 * (fuzz_main.c) and the plain replay that runs with the other tests (replay.c).
 */
#ifndef H3_TESTS_FUZZ_TARGETS_H
#define H3_TESTS_FUZZ_TARGETS_H

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t n);
    const char *corpus; ///< prefix of its files in tests/data/formats/hostile
    const char *inside; ///< name of the file when the corpus entry is a folder, or NULL
} fuzz_target;

extern const fuzz_target fuzz_targets[];
extern const size_t n_fuzz_targets;

#endif
