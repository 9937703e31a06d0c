/**
 * Folders of tests/data whose largest files are not stored. Random weights are a function of a seed
 * and a name, and a second layout is a function of the first, so a folder may hold a recipe.json
 * and the headers of its files instead of the files. The copy that is made is compared with the
 * sha256 of the file that the reference wrote: it is that file, or the test stops.
 */
#ifndef H3_TESTS_MODELS_H
#define H3_TESTS_MODELS_H

/**
 * `folder` (or a file of one) itself; or, when it or a folder above it holds a recipe.json, the
 * same folder of a complete copy in a temporary place, made once and removed when the process ends.
 * Aborts, saying why, when the copy is not what the recipe promises. Lives until the end of the
 * process.
 */
const char *test_model(const char *folder);

/** Fills the empty folder `out` with what the recipe of `folder` makes. */
void test_model_fill(const char *folder, const char *out);

#endif
