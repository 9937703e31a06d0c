/**
 * The conditioner: token ids and patch rows -> prompt_embeds [S, C].
 *
 *   h3_encoder *e;
 *   h3_encoder_open(&e, ck, d, &(h3_encoder_opts){.act = H3_BF16, .has_vision = true});
 *   h3_encoder_scratch_bytes(e, &in, &bytes);
 *   h3_dev_scratch(d, bytes);
 *   h3_encoder_run(e, &in, out);   // out: [S, h3_encoder_width(e)] on d, dtype act
 *   h3_encoder_close(&e);
 *
 * Without has_vision the vision tower is not bound and none of its bytes are read. Layers past the
 * selected one, the final norm and lm_head are declared unused: h3_ckpt_finish accepts them.
 */
#ifndef H3_NETS_ENCODER_H
#define H3_NETS_ENCODER_H

#include "encoder_text.h"

enum { H3_ENCODER_SELECT = 50 }; ///< the released model conditions on the state after layer 50

typedef struct h3_encoder_opts {
    h3_dtype act; ///< H3_F32 or H3_BF16: dtype of every activation and of the output
    int32_t
        select; ///< how many decoder layers run; 0: H3_ENCODER_SELECT. At most those of the file
    bool has_vision;       ///< bind the vision tower
    h3_layers_fn progress; ///< after each decoder layer; may be NULL
    void *progress_user;
} h3_encoder_opts;

/** One request. Host arrays, borrowed for the call. */
typedef struct h3_encoder_in {
    int64_t n_rows;           ///< S >= 1
    const int32_t *ids;       ///< [S] token ids
    const int32_t *positions; ///< [3, S] M-RoPE positions: t, h, w
    /** [S] 1 on picture pads, 2 on clip pads, else 0. Read only when there is media; then the rows
     *  of a kind take that kind's merged rows in order, and their numbers must agree. */
    const uint8_t *mm;
    h3_encoder_media image, video;
} h3_encoder_in;

typedef struct h3_encoder h3_encoder;

/** Binds weights of `ck` on `d`. Both must outlive the encoder. */
H3_NODISCARD h3_status h3_encoder_open(h3_encoder **out, h3_checkpoint *ck, h3_dev *d,
                                       const h3_encoder_opts *opts);
void h3_encoder_close(h3_encoder **e);

/** Another listener than that of the options, or none (NULL). */
void h3_encoder_watch(h3_encoder *e, h3_layers_fn progress, void *user);

/** C, the width of the output. */
int64_t h3_encoder_width(const h3_encoder *e);
/** How many decoder layers run. */
int32_t h3_encoder_layers(const h3_encoder *e);

/** Exact scratch of h3_encoder_run for these sizes: the same forward on a counting device. Only
 *  n_rows and the grids are read; the other pointers may be NULL. */
H3_NODISCARD h3_status h3_encoder_scratch_bytes(const h3_encoder *e, const h3_encoder_in *in,
                                                size_t *bytes);

/** h3_store_saved of its matrices, as it was run (or planned) last. */
int64_t h3_encoder_saved(const h3_encoder *e, size_t *on_the_way);

/**
 * Runs both towers; on return the device has been synchronised. out: dense [S, C] on the device.
 * H3_E_ARG (ids, grids, pads that do not fit), H3_E_SHAPE (out), H3_E_NOMEM, H3_E_CANCELLED, device
 * errors. Scratch is as it was, also after a failure.
 */
H3_NODISCARD h3_status h3_encoder_run(h3_encoder *e, const h3_encoder_in *in, h3_tensor out);

#endif
