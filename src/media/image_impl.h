/** Parts of the picture loader that the prober uses too. */
#ifndef H3_MEDIA_IMAGE_IMPL_H
#define H3_MEDIA_IMAGE_IMPL_H

#include "image.h"
#include "image_head.h"

/** Fails when the header alone shows that the picture cannot be read. */
H3_NODISCARD h3_status h3_image_check_head(const h3_image_head *h, const char *name);

/** h3_image_load on bytes. */
H3_NODISCARD h3_status h3_image_decode(h3_image *out, const uint8_t *data, size_t size,
                                       const char *name);

#endif
