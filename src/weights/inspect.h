/**
 * Says what a file or folder is. The JSON object:
 *
 *   path, role, what, container, layout, form, partition, prefix, files, tensors, bytes,
 *   qkv {order, reason, interleaved, stacked, doubtful}, quantization {class: {encoding: {tensors,
 *   bytes}}}, geometry {size: value}, problems [text], ignored (names), adapter {...} for a LoRA,
 *   all {name: {shape, encoding, bytes}} when verbose;
 *   for a folder of several parts: path, role "model", parts {part: object}, missing [{part,
 * from}], notes.
 */
#ifndef H3_WEIGHTS_INSPECT_H
#define H3_WEIGHTS_INSPECT_H

#include "checkpoint.h"

/** Fails only when nothing can be read. Free *out with json_decref. */
H3_NODISCARD h3_status h3_inspect_path(json_t **out, const char *path, const h3_ckpt_opts *opts,
                                       bool verbose);

/** The same for people; malloc'd. */
char *h3_inspect_text(const json_t *report);

#endif
