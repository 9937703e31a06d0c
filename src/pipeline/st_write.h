/** A safetensors file written in one go, atomically: latents, checkpoints, dumps. */
#ifndef H3_PIPELINE_ST_WRITE_H
#define H3_PIPELINE_ST_WRITE_H

#include <jansson.h>

#include "tensor.h"

typedef struct h3_st_tensor {
    const char *name;
    h3_tensor t; ///< dense, host
} h3_st_tensor;

/** `meta`: an object of strings for __metadata__, or NULL. Nothing is left under `path` on failure.
 */
H3_NODISCARD h3_status h3_st_write(const char *path, const h3_st_tensor *tensors, int n,
                                   const json_t *meta);

#endif
