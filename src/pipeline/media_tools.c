/** Looking at media files without running a request: h3_probe and h3_thumbnail; see <h3av/h3av.h>.
 *  They exist for programs around the engine (a server that checks an upload before it queues it),
 *  and use what the pipeline itself uses to read inputs. */
#include <stdlib.h>

#include "clip.h"
#include "frame_files.h"
#include "image.h"
#include "job.h"
#include "probe.h"

static h3_media_src media_of(const h3_input *in)
{
    return in->data ? h3_media_bytes(in->path ? in->path : "(data)", in->data, in->size)
                    : h3_media_file(in->path);
}

h3_status h3_probe(const h3_input *in, char **json)
{
    static const char *const kinds[] = {
        [H3_MEDIA_IMAGE] = "image", [H3_MEDIA_VIDEO] = "video", [H3_MEDIA_AUDIO] = "audio"};
    h3_media_info m;
    json_t *o;

    if (!json) return h3_fail(H3_E_ARG, "probe: no place for the JSON given");
    *json = NULL;
    if (!in || (!in->path && !in->data))
        return h3_fail(H3_E_ARG, "probe: no file and no data given");
    H3_TRY(h3_media_probe(&m, media_of(in)));
    o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:I, s:b, s:i, s:i, s:f}", "kind",
                  kinds[m.kind], "format", m.format, "video_codec", m.video_codec, "audio_codec",
                  m.audio_codec, "width", m.width, "height", m.height, "fps", m.fps, "duration",
                  m.duration, "frames", (json_int_t)m.n_frames, "has_audio", m.has_audio,
                  "channels", m.channels, "sample_rate", m.sample_rate, "audio_duration",
                  m.audio_duration);
    if (o) *json = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return *json ? H3_OK : h3_fail(H3_E_NOMEM, "no memory for what was found in a file");
}

/* The first frame of a clip, or the picture itself, no side longer than max_side. */
h3_status h3_thumbnail(const char *media, const char *png, int max_side)
{
    h3_media_info m;
    h3_clip clip;
    int w, h;
    h3_status st;

    if (!media || !png) return h3_fail(H3_E_ARG, "thumbnail: no clip, or no name for the picture");
    H3_TRY(h3_media_probe(&m, h3_media_file(media)));
    if (m.kind != H3_MEDIA_VIDEO)
        return h3_fail(H3_E_ARG, "%s: is a %s, a thumbnail needs moving pictures", media,
                       h3_media_kind_name(m.kind));
    w = m.width;
    h = m.height;
    if (max_side > 0 && (w > max_side || h > max_side)) {
        const double scale = (double)max_side / (w > h ? w : h);
        w = (int)(w * scale + 0.5) > 0 ? (int)(w * scale + 0.5) : 1;
        h = (int)(h * scale + 0.5) > 0 ? (int)(h * scale + 0.5) : 1;
    }
    H3_TRY(h3_clip_load(&clip, h3_media_file(media), 1, w, h, NULL));
    st = h3_frame_save(png, clip.rgb, clip.width, clip.height, H3_FRAMES_PNG);
    h3_clip_free(&clip);
    return st;
}
