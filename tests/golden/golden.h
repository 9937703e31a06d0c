/**
 * What every golden runner shares: reading a golden file and comparing tensors with it.
 *
 * A runner registers a kind: `match` looks at the file (tensor names, metadata; never the file
 * name) and says whether it is of that kind; `run` recomputes the stage through the production code
 * and reports each comparison. The program fails when a tolerance is passed, when nothing was
 * compared, when a tensor is missing, or when no kind matches.
 */
#ifndef H3_TESTS_GOLDEN_H
#define H3_TESTS_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>

#include "dev.h"

typedef struct golden_tensor {
    char *name;
    h3_tensor t;        ///< dense host view; rank 0 tensors are given rank 1
    const char *sha256; ///< of its bytes; then t.data is NULL and golden_exact alone can compare
} golden_tensor;

typedef struct golden {
    const char *path;   ///< the file
    const char *folder; ///< its folder
    json_t *meta;       ///< parsed __metadata__.golden; an empty object for files without
    json_t *json;       ///< a .json file, whole; one of fingerprints has `meta` and `tensors` too
    char *text;         ///< the lines of any other file that is no safetensors
    golden_tensor *tensors;
    int n_tensors;
    void *blob;
    bool is_golden; ///< has a __metadata__.golden, well formed or not
    /* bookkeeping of the report */
    int n_compared, n_failed;
    double worst; ///< largest deviation / tolerance
    char worst_name[128];
    bool is_verbose;
    const char *device;   ///< "cpu" or "ref" or "cuda": what runners open
    struct h3_comm *comm; ///< ranks that run it together (the DiT's kinds only); NULL: one
} golden;

typedef struct golden_kind {
    const char *name; ///< "dit", "packing", ...
    bool (*match)(const golden *g);
    h3_status (*run)(golden *g);
} golden_kind;

/** A tensor of the file; golden_need fails (prints, counts a failure) when it is missing. */
const h3_tensor *golden_find(const golden *g, const char *name);
const h3_tensor *golden_need(golden *g, const char *name);

/** Value of any numeric dtype at flat index i, widened. */
double golden_value(h3_tensor t, int64_t i);

/** Exact equality of integers, bytes, or float bits (dtype may differ for integers). */
void golden_exact(golden *g, const char *name, h3_tensor got);

/** RMS(got - want) / RMS(want) <= rel_limit and, if abs_limit > 0, max |got - want| <= abs_limit. A
 *  NaN or infinity in `got` fails. `got` may be bf16 or f32. */
void golden_near(golden *g, const char *name, h3_tensor got, double rel_limit, double abs_limit);

/** The same against an explicit expectation instead of a tensor of the file. */
void golden_near_to(golden *g, const char *name, h3_tensor want, h3_tensor got, double rel_limit,
                    double abs_limit);

/** At most `share` of the samples differ from the golden, each by at most `step`. */
void golden_near_u8(golden *g, const char *name, h3_tensor got, double share, int step);

/** A named yes/no check that is not a tensor comparison. Counts as one comparison. */
void golden_check(golden *g, const char *what, bool ok, const char *fmt, ...) H3_PRINTF(4, 5);

/** Model folder a golden refers to: looks beside the file and above it ("../tiny-h3", "model/",
 *  "tiny/"), in $H3AV_GOLDEN_MODELS, then for `stored` (NULL: nothing) in our own test data, since
 *  goldens may lie apart from the model they share. malloc'd; NULL (and a counted failure) when not
 *  found. */
char *golden_model(golden *g, const char *relative, const char *stored);

/** The same in our own test data. malloc'd; NULL, and no failure, when it is not there. */
char *golden_stored_model(const char *relative);

/* One table per runner file; golden_main.c lists them. */
extern const golden_kind golden_kinds_tables[], golden_kinds_plan[], golden_kinds_text[],
    golden_kinds_media[], golden_kinds_dit[], golden_kinds_encoder[], golden_kinds_video_vae[],
    golden_kinds_audio_vae[],
    golden_kinds_pipeline[]; // each ends with a zeroed entry

#endif
