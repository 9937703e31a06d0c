/**
 * libFuzzer's door to one target: built once per target with -DFUZZ_TARGET="name".
 *
 *   fuzz_gguf -runs=200000 -rss_limit_mb=256 -timeout=2 corpus tests/data/formats/hostile
 */
#include <stdlib.h>
#include <string.h>

#include "targets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const fuzz_target *t;

    for (size_t i = 0; !t && i < n_fuzz_targets; i++)
        if (strcmp(fuzz_targets[i].name, FUZZ_TARGET) == 0) t = &fuzz_targets[i];
    if (!t) abort();
    t->run(data, n);
    return 0;
}
