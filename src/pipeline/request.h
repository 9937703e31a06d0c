/**
 * From the caller's request to a plan: defaults, words to values, inputs to sources, limits with
 * named errors. No weight is touched here.
 */
#ifndef H3_PIPELINE_REQUEST_H
#define H3_PIPELINE_REQUEST_H

#include "engine.h"
#include "plan.h"
#include "source.h"

typedef enum h3_fit_mode {
    H3_FIT_REFERENCE = 0,
    H3_FIT_STRETCH,
    H3_FIT_COVER,
    H3_FIT_PAD
} h3_fit_mode;

/** Pixels and samples of all inputs, in packed order: keyframes (first, then last) or references.
 */
typedef struct h3_sources {
    h3_source list[H3_MAX_CONDITIONS];
    int n;
    bool has_first, has_last;
} h3_sources;

/** Which task the inputs ask for, and whether `rq->task` agrees. */
H3_NODISCARD h3_status h3_request_task(h3_task *out, const h3_request *rq);

/** Everything about `rq` that needs no file: prompt is UTF-8 and not empty where it must not be,
 *  numbers make sense, words are known. */
H3_NODISCARD h3_status h3_request_check(const h3_request *rq, h3_task task);

/** Loads all inputs. `e` gives defaults and the stop flag; may be NULL. */
H3_NODISCARD h3_status h3_sources_load(h3_sources *out, const h3_request *rq, h3_task task,
                                       const h3_engine *e);
void h3_sources_free(h3_sources *s);

/** The plan of the request with these sources. */
H3_NODISCARD h3_status h3_request_plan(h3_plan **out, const h3_request *rq, h3_task task,
                                       const h3_sources *s, const h3_engine *e);

H3_NODISCARD h3_status h3_parse_fit(h3_fit_mode *out, const char *word);

#endif
