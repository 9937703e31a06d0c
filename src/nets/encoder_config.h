/**
 * What shapes cannot tell comes from config.json beside the weights. Forms without one (single
 * files) get the released values, but only where the shapes are the released ones: guessing a head
 * count or a rotary base gives noise, not an error.
 */
#ifndef H3_NETS_ENCODER_CONFIG_H
#define H3_NETS_ENCODER_CONFIG_H

#include "checkpoint.h"

/** Object `part` ("text_config", "vision_config") of config.json, or NULL. */
const json_t *h3_encoder_config(const h3_checkpoint *ck, const char *part);

/** Fails with H3_E_SHAPE when `key` is present in `part` and is not the number `value`. */
H3_NODISCARD h3_status h3_encoder_config_expect(const h3_checkpoint *ck, const char *part,
                                                const char *key, int64_t value);

/** Fails with H3_E_UNSUPPORTED when `key` is present and is not the string `value`. */
H3_NODISCARD h3_status h3_encoder_config_only(const h3_checkpoint *ck, const char *part,
                                              const char *key, const char *value);

/** Shape of a tensor that must be there with at least `min_rank` axes; errors name file and tensor.
 */
H3_NODISCARD h3_status h3_encoder_shape(const h3_checkpoint *ck, const char *name, int min_rank,
                                        int *rank, int64_t ne[8]);

/** "no config.json, and <what> cannot be told from the shapes". */
h3_status h3_encoder_no_config(const h3_checkpoint *ck, const char *what);

#endif
