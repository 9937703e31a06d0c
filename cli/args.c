/** The option table and its parser; see args.h. Values are checked here for form (a number, a size,
 * a known word); what they mean is checked by the library. */
#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

enum { EXIT_USAGE = 2 };

typedef enum kind {
    K_FLAG,     ///< bool = true
    K_NO_FLAG,  ///< bool = false
    K_TEXT,     ///< const char *
    K_WORD,     ///< const char *, one of `words`
    K_INT,      ///< int from 0
    K_COUNT,    ///< int from 1
    K_U64,      ///< uint64_t
    K_REAL,     ///< double above 0
    K_REAL_0,   ///< double from 0
    K_FLOAT,    ///< float
    K_BYTES,    ///< uint64_t with K, M, G, T
    K_SIZE,     ///< WxH into rq.width, rq.height
    K_KEYFRAME, ///< h3_input
    K_REF,      ///< appends to refs
    K_LORA,     ///< appends to loras
    K_ROWS,     ///< list of row counts
    K_SIGMAS,   ///< list of base sigmas
    K_QUANT     ///< engine.quant by the option's own name
} kind;

typedef struct option_row {
    const char *name, *brief; ///< "--prompt", "-p" or NULL
    unsigned commands;
    kind kind;
    size_t offset;
    const char *value, *help; ///< placeholder and one line of help
} option_row;

#define AT(field) offsetof(cli, field)
enum {
    RUNS = CMD_GENERATE | CMD_DECODE,
    LOADS = CMD_GENERATE | CMD_PLAN | CMD_DECODE | CMD_BENCH | CMD_SERVE,
    ASKS = CMD_GENERATE | CMD_PLAN,
    FILES = CMD_DUMP | CMD_CONVERT,
    WRITES = CMD_GENERATE | CMD_DECODE | CMD_MUX
};

static const option_row rows[] = {
    {"--prompt", "-p", ASKS, K_TEXT, AT(rq.prompt), "TEXT", "what to show and to hear"},
    {"--prompt-file", NULL, ASKS, K_TEXT, AT(prompt_file), "FILE",
     "read the prompt from a file, - for standard input"},
    {"--prompt-file", NULL, CMD_TOKENIZE, K_TEXT, AT(prompt_file), "FILE",
     "read the text from a file, - for standard input"},
    {"--batch", NULL, CMD_GENERATE, K_TEXT, AT(batch), "FILE",
     "many requests, one JSON object a line (- for standard input), by one loaded model"},
    {"--count", NULL, CMD_GENERATE, K_COUNT, AT(count), "N",
     "N videos with the seeds --seed, --seed + 1, ... by one loaded model: h3av-1.mp4, h3av-2.mp4, "
     "..."},
    {"--output", "-o", CMD_GENERATE | CMD_DECODE, K_TEXT, AT(output), "FILE",
     "the MP4 to write (h3av.mp4)"},
    {"--output", "-o", CMD_MUX, K_TEXT, AT(output), "FILE", "the MP4 to write"},
    {"--output", "-o", CMD_DUMP | CMD_CONVERT | CMD_SYNTH, K_TEXT, AT(output), "FILE",
     "the file to write"},
    {"--task", NULL, ASKS, K_WORD, AT(rq.task), "auto|t2va|fl2va|ref2va", "default: by the inputs"},
    {"--size", "-s", ASKS, K_SIZE, 0, "WxH", "canvas in pixels, multiples of 32"},
    {"--width", "-W", ASKS, K_COUNT, AT(rq.width), "N", "canvas width"},
    {"--height", "-H", ASKS, K_COUNT, AT(rq.height), "N", "canvas height"},
    {"--aspect", NULL, ASKS, K_TEXT, AT(rq.aspect), "W:H",
     "canvas by its shape: 16:9, 9:16, 1:1, ..."},
    {"--frames", "-f", ASKS, K_COUNT, AT(rq.frames), "N",
     "rounded up to 17n+5, at least 22 (124; built-in model 56)"},
    {"--seconds", "-t", ASKS, K_REAL, AT(rq.seconds), "X",
     "length; becomes frames at 24 a second, rounded up the same way"},
    {"--steps", NULL, ASKS, K_COUNT, AT(rq.steps), "N",
     "sigma points; N-1 forwards, as the reference counts (50; built-in model 9)"},
    {"--seed", NULL, ASKS, K_U64, AT(rq.seed), "N", "of torch's CPU generator (42)"},
    {"--seed", NULL, CMD_SYNTH, K_U64, AT(rq.seed), "N", "another seed is another file (42)"},
    {"--noise-order", NULL, ASKS, K_WORD, AT(rq.noise_order), "diffusers|omni",
     "how draws share the seed (diffusers)"},
    {"--noise", NULL, CMD_GENERATE, K_TEXT, AT(rq.noise_path), "FILE",
     "safetensors with the noise to start from (video, audio)"},
    {"--shift", NULL, ASKS, K_REAL, AT(rq.shift_video), "X", "sigma shift of the picture (12)"},
    {"--audio-shift", NULL, ASKS, K_REAL, AT(rq.shift_audio), "X", "sigma shift of the sound (3)"},
    {"--preset", NULL, ASKS, K_TEXT, AT(rq.schedule), "turbo4|turbo8|FILE.json",
     "schedule of a few-step model"},
    {"--sigmas", NULL, ASKS, K_SIGMAS, 0, "A,B,...,0", "explicit base sigmas instead of --steps"},
    {"--first", NULL, ASKS, K_KEYFRAME, AT(first), "IMAGE", "first frame"},
    {"--last", NULL, ASKS, K_KEYFRAME, AT(last), "IMAGE", "last frame"},
    {"--ref", NULL, ASKS, K_REF, 0, "FILE[,sound=yes|no|only]",
     "reference picture, clip or sound; repeat, order matters"},
    {"--ref-fps", NULL, ASKS, K_REAL, AT(ref_fps), "X",
     "frame rate of references that are folders of frames"},
    {"--fit", NULL, ASKS, K_WORD, AT(rq.fit), "reference|stretch|cover|pad",
     "how keyframes meet the canvas"},
    {"--model", "-m", LOADS & ~(unsigned)CMD_PLAN, K_TEXT, AT(engine.model), "DIR",
     "model folder; default: the built-in h3-nano"},
    {"--model", "-m", CMD_PLAN, K_TEXT, AT(engine.model), "DIR",
     "model folder, builtin: for the built-in one; default: the sizes of the released model"},
    {"--dit", NULL, LOADS, K_TEXT, AT(engine.dit), "PATH",
     "diffusion transformer instead of the model's"},
    {"--text-encoder", NULL, LOADS, K_TEXT, AT(engine.text_encoder), "PATH",
     "conditioner instead of the model's"},
    {"--vae", NULL, LOADS, K_TEXT, AT(engine.vae), "PATH", "video VAE instead of the model's"},
    {"--audio-vae", NULL, LOADS, K_TEXT, AT(engine.audio_vae), "PATH",
     "audio VAE instead of the model's"},
    {"--tokenizer", NULL, LOADS | CMD_TOKENIZE, K_TEXT, AT(engine.tokenizer), "PATH",
     "tokenizer instead of the model's"},
    {"--to", NULL, CMD_CONVERT, K_WORD, AT(form), "bf16|f16|f32|q8_0",
     "what to write: safetensors, or for q8_0 a GGUF"},
    {"--layout", NULL, CMD_CONVERT, K_WORD, AT(layout), "own|original|diffusers",
     "names and row orders: ours, as released, or as diffusers has them"},
    {"--mmproj", NULL, FILES, K_TEXT, AT(mmproj), "FILE", "vision file of an encoder that has two"},
    {"--layers", NULL, FILES, K_COUNT, AT(text_layers), "N",
     "layers of an encoder to keep, without its last norm and head"},
    {"--head-dim", NULL, FILES, K_COUNT, AT(head_dim), "N",
     "head size of a video VAE without a config"},
    {"--delta", NULL, FILES, K_FLAG, AT(is_delta), NULL, "only what adapters add"},
    {"--lora", NULL, LOADS | FILES, K_LORA, 0, "FILE[:STRENGTH]", "low-rank adapter; repeat"},
    {"--lora-alpha", NULL, LOADS | FILES, K_FLOAT, AT(engine.lora_alpha), "X",
     "alpha of adapters that hold none"},
    {"--strict", NULL, LOADS | FILES, K_FLAG, AT(engine.is_strict_lora), NULL,
     "adapter keys that match nothing are an error"},
    {"--qkv", NULL, LOADS | FILES, K_WORD, AT(engine.qkv), "auto|interleaved|stacked",
     "row order of fused q/k/v"},
    {"--quant", NULL, LOADS, K_WORD, AT(engine.quant), "auto|keep|expand",
     "quantized weights in memory: as stored, or decoded at load"},
    {"--keep-quant", NULL, LOADS, K_QUANT, 0, NULL, "short for --quant keep"},
    {"--expand", NULL, LOADS, K_QUANT, 0, NULL, "short for --quant expand"},
    {"--device", "-d", LOADS, K_TEXT, AT(engine.device), "cpu|cuda[:N]", "where the networks run"},
    {"--ranks", NULL, RUNS | CMD_BENCH, K_INT, AT(ranks), "N",
     "processes that share the work on this host; under mpirun they are its own"},
    {"--ranks", NULL, CMD_PLAN, K_INT, AT(ranks), "N",
     "the memory of each of N processes that share the work on this host"},
    {"--gpus", NULL, RUNS | CMD_BENCH, K_TEXT, AT(gpus), "A,B,...",
     "one process for each of these GPUs"},
    {"--dtype", NULL, LOADS, K_WORD, AT(engine.dtype), "auto|f32|bf16",
     "stream of the networks; auto: f32 on the CPU, bf16 on a GPU"},
    {"--cpu-math", NULL, LOADS, K_WORD, AT(engine.math), "auto|f32|bf16|int8",
     "products on the CPU"},
    {"--cuda-math", NULL, LOADS, K_WORD, AT(engine.math), "auto|f32|tf32|fp8",
     "products (fp8: attention too) on an NVIDIA GPU"},
    {"--threads", "-j", LOADS, K_INT, AT(engine.n_threads), "N",
     "default: all cores this process may use"},
    {"--ram", NULL, LOADS, K_BYTES, AT(engine.ram_limit), "SIZE",
     "host memory to stay within, e.g. 16G"},
    {"--vram", NULL, LOADS, K_BYTES, AT(engine.vram_limit), "SIZE", "device memory to stay within"},
    {"--offload", NULL, LOADS, K_WORD, AT(engine.offload), "auto|none|stream|disk|ranks",
     "where weights wait"},
    {"--frames-dir", NULL, RUNS, K_TEXT, AT(rq.frames_dir), "DIR",
     "also (or only) write every frame as a picture"},
    {"--frames-format", NULL, RUNS, K_WORD, AT(rq.frames_format), "png|ppm",
     "of --frames-dir (png)"},
    {"--wav", NULL, RUNS | CMD_MUX, K_TEXT, AT(rq.wav_path), "FILE",
     "also (or only) write the sound; mux: the sound to use"},
    {"--codec", NULL, WRITES, K_WORD, AT(rq.codec), "auto|libx264|libopenh264", "video encoder"},
    {"--preset-x264", NULL, WRITES, K_TEXT, AT(rq.preset), "NAME", "speed of libx264 (medium)"},
    {"--crf", NULL, WRITES, K_INT, AT(rq.crf), "N", "quality of libx264, 0..51 (18)"},
    {"--no-metadata", NULL, RUNS, K_NO_FLAG, AT(rq.has_metadata), NULL,
     "leave prompt, seed and settings out of the file"},
    {"--latents", NULL, CMD_GENERATE, K_TEXT, AT(rq.latents_path), "FILE",
     "where latents wait until the MP4 is complete"},
    {"--save-latents", NULL, CMD_GENERATE, K_FLAG, AT(rq.keep_latents), NULL,
     "keep the latents after success"},
    {"--no-save-latents", NULL, CMD_GENERATE, K_NO_FLAG, AT(rq.save_latents), NULL,
     "do not write latents at all"},
    {"--checkpoint", NULL, CMD_GENERATE, K_TEXT, AT(rq.checkpoint_path), "FILE",
     "of --checkpoint-every"},
    {"--checkpoint-every", NULL, CMD_GENERATE | CMD_SERVE, K_INT, AT(rq.checkpoint_every), "N",
     "save the state of the run every N steps"},
    {"--resume", NULL, CMD_GENERATE, K_TEXT, AT(rq.resume_path), "FILE",
     "continue from a checkpoint, bit for bit"},
    {"--lift-limits", NULL, ASKS, K_FLAG, AT(rq.lift_limits), NULL,
     "accept sizes and lengths outside the released limits"},
    {"--canvas-short-edge", NULL, ASKS, K_COUNT, AT(rq.canvas_short_edge), "N",
     "with --lift-limits (768)"},
    {"--canvas-max-pixels", NULL, ASKS, K_COUNT, AT(rq.canvas_max_pixels), "N",
     "with --lift-limits (1032192)"},
    {"--reference-short-edge", NULL, ASKS, K_COUNT, AT(rq.reference_short_edge), "N",
     "with --lift-limits (2048)"},
    {"--fps", NULL, CMD_MUX, K_REAL, AT(mux_fps), "X", "frame rate of the folder (24)"},
    {"--tensor", NULL, CMD_DUMP, K_TEXT, AT(tensor), "NAME", "the canonical tensor to write"},
    {"--all", NULL, CMD_DUMP, K_FLAG, AT(dump_all), NULL, "write every tensor"},
    {"--what", NULL, CMD_BENCH, K_WORD, AT(bench.what), "all|ops|forms|dit|encoder|vae|audio",
     "what to time"},
    {"--layers", NULL, CMD_BENCH | CMD_SYNTH, K_COUNT, AT(bench.layers), "N",
     "layers of the synthetic networks"},
    {"--rows", NULL, CMD_BENCH, K_ROWS, 0, "A,B,...", "packed rows to time"},
    {"--form", NULL, CMD_BENCH, K_WORD, AT(bench.form), "q8_0",
     "networks with such weights, not as released"},
    {"--repeat", NULL, CMD_BENCH, K_COUNT, AT(bench.repeat), "N",
     "repetitions; the least time counts"},
    {"--tiny", NULL, CMD_BENCH, K_FLAG, AT(bench.is_tiny), NULL,
     "reduced widths, to try the program"},
    {"--man", NULL, CMD_HELP, K_FLAG, AT(wants_man), NULL, "the man page, in roff"},
    {"--host", NULL, CMD_SERVE, K_TEXT, AT(serve.host), "ADDRESS",
     "to listen on (127.0.0.1); others need a key"},
    {"--port", NULL, CMD_SERVE, K_INT, AT(serve.port), "N", "to listen on (8080), 0: a free one"},
    {"--data", NULL, CMD_SERVE, K_TEXT, AT(serve.data_dir), "DIR",
     "jobs, uploads and videos; default: a folder of yours"},
    {"--db", NULL, CMD_SERVE, K_TEXT, AT(serve.db), "URL",
     "postgresql://... : one queue for servers on many machines, --data on a shared path"},
    {"--api-key-file", NULL, CMD_SERVE, K_TEXT, AT(serve.api_key_file), "FILE",
     "the key that clients must send (or H3AV_API_KEY)"},
    {"--api-key", NULL, CMD_SERVE, K_TEXT, AT(serve.api_key), "KEY",
     "the same; other users of this machine can see it"},
    {"--allow-public", NULL, CMD_SERVE, K_FLAG, AT(serve.allow_public), NULL,
     "listen on a public address without a key"},
    {"--host-name", NULL, CMD_SERVE, K_TEXT, AT(serve.host_names), "A,B,...",
     "further names by which clients may call it"},
    {"--cors", NULL, CMD_SERVE, K_TEXT, AT(serve.cors), "ORIGIN,...",
     "origins whose pages may use it"},
    {"--model-name", NULL, CMD_SERVE, K_TEXT, AT(serve.model_name), "NAME",
     "what clients call the model"},
    {"--queue", NULL, CMD_SERVE, K_INT, AT(serve.max_queue), "N", "waiting videos (32)"},
    {"--max-connections", NULL, CMD_SERVE, K_INT, AT(serve.max_connections), "N", "at once (256)"},
    {"--max-streams", NULL, CMD_SERVE, K_INT, AT(serve.max_streams), "N",
     "event streams at once (64)"},
    {"--max-body", NULL, CMD_SERVE, K_BYTES, AT(serve.max_body), "SIZE",
     "of one request with its uploads (512M)"},
    {"--max-seconds", NULL, CMD_SERVE, K_REAL, AT(serve.max_seconds), "X", "longest video (30)"},
    {"--max-pixels", NULL, CMD_SERVE, K_INT, AT(serve.max_pixels), "N", "largest canvas (2097152)"},
    {"--max-steps", NULL, CMD_SERVE, K_INT, AT(serve.max_steps), "N", "of a video (200)"},
    {"--keep-jobs", NULL, CMD_SERVE, K_INT, AT(serve.keep_jobs), "N",
     "finished videos that are kept (1000), 0: all"},
    {"--keep-days", NULL, CMD_SERVE, K_REAL_0, AT(serve.keep_days), "X",
     "how long they are kept (30), 0: for ever"},
    {"--keep-bytes", NULL, CMD_SERVE, K_BYTES, AT(serve.keep_bytes), "SIZE",
     "of all finished videos (50G)"},
    {"--sync-seconds", NULL, CMD_SERVE, K_INT, AT(serve.sync_seconds), "N",
     "how long /v1/videos/sync waits (3600)"},
    {"--json", NULL, ~0u, K_FLAG, AT(is_json), NULL, "one JSON object per event or result"},
    {"--verbose", "-v", ~0u, K_FLAG, AT(is_verbose), NULL,
     "operation table, every tensor, every decision"},
    {"--quiet", "-q", ~0u, K_FLAG, AT(is_quiet), NULL, "errors only"},
    {"--help", "-h", ~0u, K_FLAG, AT(wants_help), NULL, "this text"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const struct {
    const char *name;
    command cmd;
    int min_args, max_args;
    const char *args, *help;
} commands[] = {
    {"generate", CMD_GENERATE, 0, 1, "[PROMPT]",
     "prompt (and pictures, clips, sounds) to an MP4 with sound"},
    {"plan", CMD_PLAN, 0, 1, "[PROMPT]",
     "everything generate would decide; without -m for the released model, no weights needed"},
    {"decode", CMD_DECODE, 1, 1, "LATENTS", "saved latents to an MP4"},
    {"mux", CMD_MUX, 1, 1, "FRAMES_DIR", "a folder of frames and a WAV to an MP4"},
    {"inspect", CMD_INSPECT, 1, 1, "PATH", "what is this file or folder, and what is missing"},
    {"tokenize", CMD_TOKENIZE, 0, 1, "[TEXT]", "token ids and pieces of a text"},
    {"dump", CMD_DUMP, 1, 1, "PATH", "tensors as float32 safetensors under canonical names"},
    {"convert", CMD_CONVERT, 1, 1, "PATH",
     "a part of a model in another form, from any published one"},
    {"synth", CMD_SYNTH, 1, 1, "FORM",
     "random weights in a published form, to try what needs files of real size; list names them"},
    {"serve", CMD_SERVE, 0, 0, "", "the video API over HTTP, and a page to use it"},
    {"bench", CMD_BENCH, 0, 0, "", "time operations and stages"},
    {"version", CMD_VERSION, 0, 0, "", "print the version"},
    {"help", CMD_HELP, 0, 1, "[COMMAND]", "this text"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

enum { LEFT = 34 }; // columns of names and values in help

void args_usage(FILE *to, command cmd)
{
    if (cmd == CMD_NONE) {
        fprintf(to, "h3av %s: MiniMax-H3 video with sound\n\nusage: h3av COMMAND [OPTIONS]\n\n",
                h3_version());
        for (int i = 0; i < N_COMMANDS; i++)
            fprintf(to, "  %-9s %-13s %s\n", commands[i].name, commands[i].args, commands[i].help);
        fprintf(to,
                "\nh3av COMMAND --help lists its options. Exit status: 0 done, 2 wrong usage or "
                "request,\n3 input/output, 4 damaged or foreign file, 5 something missing, 6 not "
                "enough memory,\n7 not supported here, 8 device, 10 NaN, 70 internal, 130 "
                "stopped.\n");
        return;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].cmd == cmd)
            fprintf(to, "usage: h3av %s [OPTIONS] %s\n%s\n\n", commands[i].name, commands[i].args,
                    commands[i].help);
    for (int i = 0; i < N_ROWS; i++) {
        char left[96];
        if (!(rows[i].commands & cmd)) continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", rows[i].brief ? rows[i].brief : "",
                 rows[i].brief ? ", " : "", rows[i].name, rows[i].value ? " " : "",
                 rows[i].value ? rows[i].value : "");
        if (strlen(left) > LEFT)
            fprintf(to, "  %s\n  %-*s %s\n", left, LEFT, "", rows[i].help);
        else
            fprintf(to, "  %-*s %s\n", LEFT, left, rows[i].help);
    }
}

/* Roff takes a leading dot, quotes and backslashes for itself. */
static void man_text(FILE *to, const char *s)
{
    for (; *s; s++) {
        if (*s == '\\')
            fputs("\\e", to);
        else if (*s == '-')
            fputs("\\-", to);
        else
            fputc(*s, to);
    }
}

static void man_option(FILE *to, const option_row *r)
{
    fputs(".TP\n.B ", to);
    if (r->brief) {
        man_text(to, r->brief);
        fputs(", ", to);
    }
    man_text(to, r->name);
    if (r->value) {
        fputs(" \\fI", to);
        man_text(to, r->value);
        fputs("\\fR", to);
    }
    fputs("\n", to);
    man_text(to, r->help);
    fputs(".\n", to);
}

void args_man(FILE *to)
{
    fprintf(to,
            ".TH H3AV 1 \"\" \"h3av %s\" \"User Commands\"\n.SH NAME\nh3av \\- MiniMax\\-H3 video "
            "with sound\n",
            h3_version());
    fputs(".SH SYNOPSIS\n.B h3av\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n"
          "Turns a prompt, and optional keyframes or reference pictures, clips and sounds, into a "
          "24 frames\n"
          "a second video with matching 32 kHz stereo sound, with the MiniMax\\-H3 model.\n.SH "
          "COMMANDS\n",
          to);
    for (int i = 0; i < N_COMMANDS; i++) {
        fprintf(to, ".SS %s %s\n", commands[i].name, commands[i].args);
        man_text(to, commands[i].help);
        fputs(".\n", to);
        for (int k = 0; k < N_ROWS; k++)
            if ((rows[k].commands & commands[i].cmd) && rows[k].commands != ~0u)
                man_option(to, &rows[k]);
    }
    fputs(".SS All commands\n", to);
    for (int k = 0; k < N_ROWS; k++)
        if (rows[k].commands == ~0u) man_option(to, &rows[k]);
    fputs(
        ".SH MANY REQUESTS\nEach line of\n.B \\-\\-batch\n"
        "is a JSON object whose members are options of\n.B generate\nwithout their dashes, for "
        "example {\"prompt\": \"a fox\", \"seed\": 7, \"output\": \"fox.mp4\"}. What it leaves out "
        "is as the command line says; without an output, the name of\n.B \\-o\n"
        "gets the line's number. Parts of the model stay loaded. A line that fails is told with "
        "its number and leaves the others alone; the exit status is that of the first that "
        "failed.\n",
        to);
    fputs(".SH SEVERAL VIDEOS\n.B \\-\\-count \\fIN\\fR\nmakes N videos of one request, with the "
          "seeds "
          "\\-\\-seed, \\-\\-seed + 1, ... Every name (\\-o, \\-\\-wav, \\-\\-frames\\-dir, "
          "\\-\\-latents, \\-\\-checkpoint) gets the number of its video: clip\\-1.mp4. The first "
          "that "
          "fails ends the run.\n",
          to);
    fputs(".SH EXIT STATUS\n0 done; 2 wrong usage or request; 3 input or output; 4 damaged or "
          "foreign file; 5 something\n"
          "missing; 6 not enough memory; 7 not supported here; 8 device; 10 NaN or infinity; 70 "
          "internal;\n130 stopped.\n"
          ".SH EXAMPLES\n.nf\nh3av generate \\-p \"a red circle moves left to right with a low "
          "tone\" \\-o circle.mp4\n"
          "h3av generate \\-m /models/MiniMax\\-H3 \\-\\-first cat.jpg \\-p \"The cat jumps.\" "
          "\\-o cat.mp4\n"
          "h3av generate \\-p \"rain on a tin roof\" \\-\\-count 4 \\-\\-seed 100 \\-o rain.mp4\n"
          "h3av generate \\-\\-batch shots.jsonl \\-o shots/clip.mp4\n"
          "h3av plan \\-\\-ref voice.wav \\-\\-ref face.jpg \\-p \"<Picture 1> speaks.\"\n.fi\n",
          to);
}

enum { MAX_SHOWN = 120 };

/* What somebody typed, fit for one line: its begin, without control characters. */
static const char *shown(char *out, const char *s)
{
    size_t n = 0;

    for (; s[n] && n < MAX_SHOWN; n++)
        out[n] = (unsigned char)s[n] < 0x20 || s[n] == 0x7f ? '?' : s[n];
    strcpy(out + n, s[n] ? "..." : "");
    return out;
}

static int usage_error(const char *fmt, const char *a, const char *b)
{
    char a_text[MAX_SHOWN + 4], b_text[MAX_SHOWN + 4];

    char text[512];

    snprintf(text, sizeof text, fmt, shown(a_text, a), shown(b_text, b));
    return report_said(EXIT_USAGE, "%s", text);
}

static bool to_real(const char *s, double *out)
{
    char *end;

    errno = 0;
    *out = strtod(s, &end);
    return *s && !*end && errno == 0 && isfinite(*out);
}

static bool to_int(const char *s, long long lo, long long hi, long long *out)
{
    char *end;

    errno = 0;
    *out = strtoll(s, &end, 10);
    return *s && !*end && errno == 0 && *out >= lo && *out <= hi;
}

static bool to_u64(const char *s, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && errno == 0;
}

/* "24G", "512M", "4096" */
static bool to_bytes(const char *s, uint64_t *out)
{
    char *end;
    double v, unit = 1;

    errno = 0;
    v = strtod(s, &end);
    if (end == s || errno || !(v > 0)) return false;
    if (*end == 'K' || *end == 'k') unit = 1024.0;
    if (*end == 'M' || *end == 'm') unit = 1048576.0;
    if (*end == 'G' || *end == 'g') unit = 1073741824.0;
    if (*end == 'T' || *end == 't') unit = 1099511627776.0;
    if (unit > 1) end++;
    if (*end == 'i') end++;
    if (*end == 'B') end++;
    if (*end || v * unit > 9e18) return false;
    *out = (uint64_t)(v * unit);
    return true;
}

static bool is_word(const char *words, const char *s)
{
    const size_t n = strlen(s);

    for (const char *w = words; w && *w;) {
        const char *bar = strchr(w, '|');
        const size_t m = bar ? (size_t)(bar - w) : strlen(w);
        if (m == n && memcmp(w, s, n) == 0) return true;
        w = bar ? bar + 1 : NULL;
    }
    return false;
}

static char *own(cli *c, const char *s, size_t n)
{
    char *p = malloc(n + 1);

    if (!p || c->n_owned == (int)(sizeof c->owned / sizeof *c->owned)) abort();
    memcpy(p, s, n);
    p[n] = '\0';
    c->owned[c->n_owned++] = p;
    return p;
}

/* FILE[,sound=yes|no|only]: only a suffix of that very form is cut off, so names with commas work.
 */
static int add_ref(cli *c, const char *value)
{
    static const struct {
        const char *suffix;
        h3_sound_use use;
    } suffixes[] = {
        {",sound=yes", H3_SOUND_YES}, {",sound=no", H3_SOUND_NO}, {",sound=only", H3_SOUND_ONLY}};
    size_t n = strlen(value);
    h3_input *in;

    if (c->rq.n_refs == MAX_REFS) return usage_error("--ref %s: too many references%s", value, "");
    in = &c->refs[c->rq.n_refs++];
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const size_t m = strlen(suffixes[i].suffix);
        if (n > m && strcmp(value + n - m, suffixes[i].suffix) == 0) {
            in->sound = suffixes[i].use;
            n -= m;
            break;
        }
    }
    if (n == strlen(value) && strstr(value, ",sound="))
        return usage_error("--ref %s: expected sound=yes, sound=no or sound=only%s", value, "");
    in->path = own(c, value, n);
    return 0;
}

/* FILE[:STRENGTH]; a colon not followed by a number belongs to the name. */
static int add_lora(cli *c, const char *value)
{
    const char *colon = strrchr(value, ':');
    double strength = 1.0;
    size_t n = strlen(value);

    if (c->engine.n_loras == MAX_LORAS) return usage_error("--lora %s: too many%s", value, "");
    if (colon && to_real(colon + 1, &strength)) n = (size_t)(colon - value);
    c->loras[c->engine.n_loras++] = (h3_lora_file){own(c, value, n), (float)strength};
    return 0;
}

/* Comma separated numbers, at most `max`; returns how many, or -1. */
static int to_list(const char *s, double *out, int max)
{
    int n = 0;

    while (n < max) {
        char *end;
        errno = 0;
        out[n] = strtod(s, &end);
        if (end == s || errno || !isfinite(out[n])) return -1;
        n++;
        if (!*end) return n;
        if (*end != ',') return -1;
        s = end + 1;
    }
    return -1;
}

static int set_list(cli *c, const option_row *r, const char *value)
{
    double list[MAX_SIGMAS];
    const int max = r->kind == K_ROWS ? MAX_ROWS : MAX_SIGMAS;
    const int n = to_list(value, list, max);

    if (n < 1) return usage_error("%s %s: expected numbers with commas between", r->name, value);
    for (int i = 0; i < n; i++) {
        if (r->kind == K_ROWS) {
            if (!(list[i] >= 1 && list[i] <= 1e7))
                return usage_error("%s %s: rows must be 1..10000000", r->name, value);
            c->rows[i] = (int64_t)list[i];
        } else {
            c->sigmas[i] = (float)list[i];
        }
    }
    if (r->kind == K_ROWS) {
        c->bench.rows = c->rows;
        c->bench.n_rows = n;
    } else {
        c->rq.sigmas = c->sigmas;
        c->rq.n_sigmas = n;
    }
    return 0;
}

static int set_size(cli *c, const option_row *r, const char *value)
{
    const char *x = strchr(value, 'x');
    char width[16] = "";
    long long w, h;

    if (x) snprintf(width, sizeof width, "%.*s", (int)(x - value), value);
    if (!x || x - value >= (int)sizeof width || !to_int(x + 1, 1, 1 << 20, &h) ||
        !to_int(width, 1, 1 << 20, &w))
        return usage_error("%s %s: expected WIDTHxHEIGHT, e.g. 1344x768", r->name, value);
    c->rq.width = (int)w;
    c->rq.height = (int)h;
    return 0;
}

static int set_value(cli *c, const option_row *r, const char *value)
{
    void *at = (char *)c + r->offset;
    long long i;

    switch (r->kind) {
    case K_FLAG:
        *(bool *)at = true;
        return 0;
    case K_NO_FLAG:
        *(bool *)at = false;
        return 0;
    case K_TEXT:
        *(const char **)at = value;
        return 0;
    case K_WORD:
        if (!is_word(r->value, value)) {
            char text[MAX_SHOWN + 4];
            return report_said(EXIT_USAGE, "%s %s: expected %s", r->name, shown(text, value),
                               r->value);
        }
        *(const char **)at = value;
        if (r->offset == AT(engine.math))
            *(strcmp(r->name, "--cuda-math") == 0 ? &c->has_cuda_math : &c->has_cpu_math) = true;
        return 0;
    case K_INT:
    case K_COUNT:
        if (!to_int(value, r->kind == K_COUNT, 2147483647, &i))
            return usage_error(r->kind == K_COUNT
                                   ? "%s %s: expected a whole number from 1 to 2147483647"
                                   : "%s %s: expected a whole number from 0 to 2147483647",
                               r->name, value);
        *(int *)at = (int)i;
        return 0;
    case K_U64:
        if (!to_u64(value, at))
            return usage_error("%s %s: expected a whole number below 2^64", r->name, value);
        return 0;
    case K_REAL:
        if (!to_real(value, at) || *(double *)at <= 0)
            return usage_error("%s %s: expected a number above 0", r->name, value);
        return 0;
    case K_REAL_0:
        if (!to_real(value, at) || *(double *)at < 0)
            return usage_error("%s %s: expected a number from 0", r->name, value);
        return 0;
    case K_FLOAT: {
        double v;
        if (!to_real(value, &v) || v <= 0)
            return usage_error("%s %s: expected a number above 0", r->name, value);
        *(float *)at = (float)v;
        return 0;
    }
    case K_BYTES:
        if (!to_bytes(value, at))
            return usage_error("%s %s: expected a size such as 24G or 512M", r->name, value);
        return 0;
    case K_SIZE:
        return set_size(c, r, value);
    case K_KEYFRAME:
        ((h3_input *)at)->path = value;
        return 0;
    case K_REF:
        return add_ref(c, value);
    case K_LORA:
        return add_lora(c, value);
    case K_QUANT:
        c->engine.quant = strcmp(r->name, "--expand") == 0 ? "expand" : "keep";
        return 0;
    case K_ROWS:
    case K_SIGMAS:
        return set_list(c, r, value);
    }
    return EXIT_USAGE;
}

/* The row of this command where two commands share a name. */
static const option_row *find_option(const char *arg, size_t n, command cmd)
{
    const option_row *found = NULL;

    for (int i = 0; i < N_ROWS; i++)
        if ((strlen(rows[i].name) == n && memcmp(rows[i].name, arg, n) == 0) ||
            (rows[i].brief && strlen(rows[i].brief) == n && memcmp(rows[i].brief, arg, n) == 0)) {
            if (rows[i].commands & (unsigned)cmd) return &rows[i];
            if (!found) found = &rows[i];
        }
    return found;
}

command args_command(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return commands[i].cmd;
    return CMD_NONE;
}

static const char *command_name(command cmd)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (commands[i].cmd == cmd) return commands[i].name;
    return "";
}

/* What other programs for such models call it, or ask for. */
static const struct {
    const char *names, *hint; // names with blanks around
} foreign[] = {
    {" --num-frames --num_frames --video-frames --length ", "it is --frames here"},
    {" --num-inference-steps --num_inference_steps --sampling-steps --sample_steps ",
     "it is --steps here"},
    {" --duration --video-length ", "it is --seconds here"},
    {" --resolution --video-size --video_size ", "it is --size here"},
    {" --out --outfile --output-file --save-path --save_file ", "it is --output here"},
    {" --image --image-path --init-img --start-image --first-frame ", "it is --first here"},
    {" --end-img --end-image --last-frame ", "it is --last here"},
    {" --ref-image --reference --references --ref-video --ref-audio --audio ", "it is --ref here"},
    {" --math --precision ", "it is --dtype, and --cpu-math or --cuda-math here"},
    {" --flow-shift --flow_shift --sample_shift ", "it is --shift here"},
    {" --lora-model-dir --lora_path --lora-scale ", "it is --lora FILE:STRENGTH here"},
    {" --diffusion-model --unet --transformer ", "it is --dit here"},
    {" --clip --llm --t5xxl --qwen2vl ", "it is --text-encoder here"},
    {" --batch-count --batch_count --batch-size --batch_size --num-videos --num_videos "
     "--num-videos-per-prompt --num_videos_per_prompt --n-iter --n_iter -b ",
     "it is --count N here: N videos, each with the next seed"},
    {" --prompts --prompt-list --prompts-file --from-file ",
     "it is --batch FILE here: one JSON object a line, such as {\"prompt\": \"a fox\"}"},
    {" --offload-to-cpu --cpu-offload --offload_model --lowvram --medvram --blocks-to-swap ",
     "weights stream by themselves; see --offload, --vram and --ram"},
    {" --vae-tiling --vae_tiling --tiled-vae --vae-tile-size --tile-size ",
     "the decoder always works in tiles, of the size it was trained on"},
    {" --cfg --cfg-scale --guidance --guidance-scale --guidance_scale --sample_guide_scale ",
     "the model is run without guidance, as its reference does"},
    {" --negative-prompt --negative_prompt -n ",
     "the model takes no negative prompt; say in the prompt what to show"},
    {" --sampler --sampling-method --scheduler --sample_solver ",
     "the only sampler is Euler, as in the reference; see --preset, --sigmas and --shift"},
    {" --fps ", "videos have 24 frames a second"},
    {" --no-audio --mute ", "every clip has sound; --frames-dir writes pictures only"},
};

enum { MAX_TYPED = 32 };

/* How many letters to insert, drop or change between two words, 99: too many to count. */
static int letters_apart(const char *a, size_t n, const char *b)
{
    int row[MAX_TYPED + 1];
    const size_t m = strlen(b);

    if (n > MAX_TYPED || m > MAX_TYPED) return 99;
    for (size_t k = 0; k <= m; k++)
        row[k] = (int)k;
    for (size_t i = 0; i < n; i++) {
        int before = row[0]; // of the row above
        row[0] = (int)i + 1;
        for (size_t k = 0; k < m; k++) {
            const int change = before + (tolower((unsigned char)a[i]) != b[k]);
            const int other = 1 + (row[k] < row[k + 1] ? row[k] : row[k + 1]);
            before = row[k + 1];
            row[k + 1] = change < other ? change : other;
        }
    }
    return row[m];
}

/* The option of this command that was meant, or NULL: two slips at most, and not the whole word. */
static const char *meant_option(command cmd, const char *arg, size_t n)
{
    const char *best = NULL;
    int least = n < 6 ? 2 : 3;

    if (n > 2 && arg[1] != '-') arg--, n++; // -steps: the dash before it is the one that lacks
    for (int i = 0; i < N_ROWS; i++) {
        const int d = rows[i].commands & (unsigned)cmd ? letters_apart(arg, n, rows[i].name) : 99;
        if (d < least) {
            best = rows[i].name;
            least = d;
        }
    }
    return best;
}

static int unknown_option(const cli *c, const char *arg, size_t n)
{
    char name[64], typed[MAX_TYPED + 2];

    snprintf(name, sizeof name, " %.*s ", (int)(n < 60 ? n : 60), arg);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (c->cmd & ASKS && strstr(foreign[i].names, name))
            return usage_error("unknown option %s: %s", arg, foreign[i].hint);
    snprintf(typed, sizeof typed, "-%.*s", (int)(n < MAX_TYPED ? n : MAX_TYPED), arg);
    const char *meant = meant_option(c->cmd, typed + 1, n < MAX_TYPED ? n : MAX_TYPED);
    if (meant) return usage_error("unknown option %s; is it %s?", arg, meant);
    return usage_error("unknown option %s; h3av %s --help lists them", arg, command_name(c->cmd));
}

/* One option at argv[*i]; advances past its value. */
static int parse_option(cli *c, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *eq = arg[1] == '-' ? strchr(arg, '=') : NULL;
    const size_t n = eq ? (size_t)(eq - arg) : strlen(arg);
    const option_row *r = find_option(arg, n, c->cmd);
    const char *value = eq ? eq + 1 : NULL;

    if (!r || (c->cmd & ASKS && r->commands == CMD_MUX)) return unknown_option(c, arg, n);
    if (!(r->commands & (unsigned)c->cmd))
        return usage_error("option %s does not apply to h3av %s", r->name, command_name(c->cmd));
    if (!r->value) {
        if (eq) return usage_error("option %s takes no value%s", r->name, "");
        return set_value(c, r, NULL);
    }
    if (!value) {
        if (*i + 1 >= argc) return usage_error("option %s needs a value: %s", r->name, r->value);
        value = argv[++*i];
    }
    if (!*value && strcmp(r->name, "--prompt") != 0) // a variable of a script that was never set
        return usage_error("option %s needs a value, not an empty one: %s", r->name, r->value);
    return set_value(c, r, value);
}

/* ---- lines of --batch ---- */

/* The row of `generate` by a name without dashes. */
static const option_row *request_row(const char *name)
{
    char full[48] = "--";
    size_t n = 2;
    const option_row *r;

    for (; *name && n + 1 < sizeof full; name++)
        full[n++] = *name == '_' ? '-' : *name;
    if (*name) return NULL;
    r = find_option(full, n, CMD_GENERATE);
    return r && r->commands & CMD_GENERATE ? r : NULL;
}

args_value args_of_request(const char *name)
{
    const option_row *r = request_row(name);

    if (!r) return ARGS_UNKNOWN;
    /* What the engine is opened with is an option of bench as well. */
    if (r->commands & CMD_BENCH || r->offset == AT(batch)) return ARGS_ENGINE;
    if (r->offset == AT(count)) return ARGS_COUNT;
    switch (r->kind) {
    case K_FLAG:
    case K_NO_FLAG:
        return ARGS_FLAG;
    case K_TEXT:
    case K_WORD:
    case K_SIZE:
    case K_KEYFRAME:
        return ARGS_TEXT;
    case K_REF:
        return ARGS_FILES;
    case K_SIGMAS:
        return ARGS_NUMBERS;
    default:
        return ARGS_NUMBER;
    }
}

void args_forget(cli *c, const char *name)
{
    const option_row *r = request_row(name);
    h3_request *q = &c->rq;

    if (!r) return;
    switch (r->offset) {
    case AT(rq.frames):
    case AT(rq.seconds):
        q->frames = 0;
        q->seconds = 0;
        return;
    case AT(rq.width):
    case AT(rq.height):
        q->aspect = NULL;
        return;
    case AT(rq.aspect):
        q->width = q->height = 0;
        return;
    case AT(rq.steps):
    case AT(rq.schedule):
        q->steps = q->n_sigmas = 0;
        q->schedule = NULL;
        q->sigmas = NULL;
        return;
    case AT(rq.prompt):
    case AT(prompt_file):
        q->prompt = c->prompt_file = NULL;
        return;
    default:
        break;
    }
    if (r->kind == K_SIZE) q->aspect = NULL;
    if (r->kind == K_SIGMAS) args_forget(c, "steps");
    if (r->kind == K_REF) q->n_refs = 0;
}

int args_set(cli *c, const char *name, const char *value, bool is_set)
{
    const option_row *r = request_row(name);

    if (r->kind == K_FLAG || r->kind == K_NO_FLAG) {
        *(bool *)(void *)((char *)c + r->offset) = is_set == (r->kind == K_FLAG);
        return 0;
    }
    if (!*value && r->offset != AT(rq.prompt))
        return usage_error("%s needs a value, not an empty one%s", name, "");
    return set_value(c, r, value);
}

/* The model inside the program by its short name, unless something here is called so. */
static const char *built_in(const char *path)
{
    return path && strcmp(path, "builtin") == 0 && access(path, F_OK) != 0 ? "builtin:" : path;
}

static void connect(cli *c);
static int check_effects(const cli *c);

int args_settle(cli *c)
{
    connect(c);
    return check_effects(c);
}

static void set_defaults(cli *c)
{
    memset(c, 0, sizeof *c);
    c->engine = h3_engine_default();
    c->rq = h3_request_default();
    c->bench.what = "all";
    c->bench.repeat = 3;
    c->serve = srv_opts_default();
}

/* Pointers into *c itself are set last, when nothing moves any more. */
static void connect(cli *c)
{
    for (int i = 0; i < c->rq.n_refs; i++)
        c->refs[i].fps = c->ref_fps;
    c->rq.refs = c->rq.n_refs ? c->refs : NULL;
    c->rq.first = c->first.path ? &c->first : NULL;
    c->rq.last = c->last.path ? &c->last : NULL;
    c->engine.loras = c->engine.n_loras ? c->loras : NULL;
    if (c->output) c->rq.out_path = c->output;
    c->engine.model = built_in(c->engine.model);
    if (c->cmd == CMD_INSPECT && c->n_args) c->arg[0] = built_in(c->arg[0]);
    c->serve.engine = c->engine;
    c->serve.is_quiet = c->is_quiet;
    c->serve.is_verbose = c->is_verbose;
    c->serve.checkpoint_every = c->rq.checkpoint_every;
}

static int unexpected(const cli *c, const char *arg)
{
    if (c->cmd & (ASKS | CMD_TOKENIZE))
        return usage_error("unexpected argument %s: a prompt of several words needs quotes%s", arg,
                           "");
    return usage_error("h3av %s: unexpected argument %s", command_name(c->cmd), arg);
}

bool args_name_model(const h3_engine_opts *o)
{
    return o->model || o->dit || o->text_encoder || o->vae || o->audio_vae || o->tokenizer ||
           o->n_loras;
}

/* Where and how networks run says nothing of a plan that has none: who asks whether a run fits
 * would take its silence for a yes. */
static const char *idle_in_plan(const h3_engine_opts *e)
{
    const h3_engine_opts def = h3_engine_default();
    const struct {
        const char *name, *value, *unset;
    } texts[] = {
        {"--device", e->device, def.device}, {"--offload", e->offload, def.offload},
        {"--dtype", e->dtype, def.dtype},    {"--quant", e->quant, def.quant},
        {"--qkv", e->qkv, def.qkv},
    };

    if (e->ram_limit) return "--ram";
    if (e->vram_limit) return "--vram";
    if (e->n_threads) return "--threads";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].value && strcmp(texts[i].value, texts[i].unset) != 0) return texts[i].name;
    return NULL;
}

/* An option that can have no effect was meant for something else. */
static int check_effects(const cli *c)
{
    const h3_engine_opts *e = &c->engine;
    const char *idle = NULL, *lacks = NULL;

    const bool is_cuda = e->device && strncmp(e->device, "cuda", 4) == 0;
    if (e->vram_limit && !is_cuda && !c->gpus) idle = "--vram", lacks = "--device cuda";
    if (c->has_cuda_math && !is_cuda && !c->gpus) idle = "--cuda-math", lacks = "--device cuda";
    if (c->has_cpu_math && (is_cuda || c->gpus)) idle = "--cpu-math", lacks = "--device cpu";
    if (c->cmd == CMD_PLAN && !args_name_model(e)) {
        const char *name = c->has_cpu_math ? "--cpu-math" : idle_in_plan(e);
        if (name) idle = name, lacks = "a model: -m DIR, or -m builtin";
    }
    if (idle) return usage_error("%s has no effect without %s", idle, lacks);
    if (c->batch) return 0; // lines may bring what is missing
    if (c->ref_fps > 0 && c->rq.n_refs == 0) idle = "--ref-fps", lacks = "--ref";
    if (c->rq.frames_format && !c->rq.frames_dir) idle = "--frames-format", lacks = "--frames-dir";
    if (c->cmd & (RUNS | CMD_PLAN) && e->n_loras == 0) {
        if (e->is_strict_lora) idle = "--strict", lacks = "--lora";
        if (e->lora_alpha > 0) idle = "--lora-alpha", lacks = "--lora";
    }
    return idle ? usage_error("%s has no effect without %s", idle, lacks) : 0;
}

/* What belongs to one video, and a seed for each. */
static int check_count(const cli *c)
{
    if (!c->count) return 0;
    if (c->batch)
        return usage_error("--count is for one request; in --batch each line is one video%s%s", "",
                           "");
    if (c->rq.resume_path || c->rq.noise_path)
        return usage_error("%s is one video's, and --count makes several%s",
                           c->rq.resume_path ? "--resume" : "--noise", "");
    if (c->gpus || c->ranks > 1)
        return usage_error("%s: the videos of --count are made by one process%s",
                           c->gpus ? "--gpus" : "--ranks", "");
    if (c->rq.seed > UINT64_MAX - (uint64_t)(c->count - 1))
        return usage_error("--count: the last seed would be above 2^64 - 1%s%s", "", "");
    return 0;
}

/* Names that get a number must be names of files. */
static int check_numbered(const cli *c)
{
    const size_t n = c->output ? strlen(c->output) : 0;
    const char *option = c->batch ? "--batch" : "--count";
    struct stat info;

    if ((!c->batch && !c->count) || !n) return 0;
    if (strcmp(c->output, "-") == 0)
        return usage_error("output -: standard output is not supported%s%s", "", "");
    if (c->output[n - 1] == '/' || (stat(c->output, &info) == 0 && S_ISDIR(info.st_mode)))
        return usage_error(
            "output %s: is a folder, give the name that the numbers of %s are added to", c->output,
            option);
    return 0;
}

/* What only one clip can have is named in the lines. */
static int check_batch(const cli *c)
{
    const struct {
        const char *name, *value;
    } single[] = {
        {"--frames-dir", c->rq.frames_dir},
        {"--wav", c->rq.wav_path},
        {"--latents", c->rq.latents_path},
        {"--checkpoint", c->rq.checkpoint_path},
        {"--resume", c->rq.resume_path},
        {"--gpus", c->gpus},
        {"--ranks", c->ranks > 1 ? "ranks" : NULL},
    };

    if (!c->batch) return 0;
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (single[i].value && i < 5)
            return usage_error("%s is one clip's: name it in the lines of --batch%s",
                               single[i].name, "");
        else if (single[i].value)
            return usage_error("%s: the requests of --batch run in one process%s", single[i].name,
                               "");
    if (c->prompt_file && strcmp(c->batch, "-") == 0 && strcmp(c->prompt_file, "-") == 0)
        return usage_error("standard input cannot be both --batch and --prompt-file%s%s", "", "");
    return 0;
}

static int check_args(const cli *c)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        if (commands[i].cmd != c->cmd) continue;
        if (c->n_args < commands[i].min_args)
            return usage_error("h3av %s needs %s", commands[i].name, commands[i].args);
        if (c->n_args > commands[i].max_args) return unexpected(c, c->arg[commands[i].max_args]);
    }
    if (c->cmd == CMD_HELP && c->n_args && args_command(c->arg[0]) == CMD_NONE)
        return usage_error("unknown command %s; h3av help lists them%s", c->arg[0], "");
    if (c->cmd == CMD_TOKENIZE && c->n_args == (c->prompt_file != NULL))
        return usage_error("h3av tokenize needs one of TEXT and --prompt-file%s%s", "", "");
    int st = check_batch(c);
    if (st == 0) st = check_count(c);
    if (st == 0) st = check_numbered(c);
    return st ? st : check_effects(c);
}

static int unknown_command(const char *word)
{
    const char *meant = NULL;
    int least = 3;

    if (word[0] == '-')
        return usage_error("%s: the command comes first, as in h3av generate %s ...", word, word);
    if (strchr(word, ' '))
        return usage_error("\"%s\" is no command; a prompt comes after one: h3av generate \"%s\"",
                           word, word);
    for (int i = 0; i < N_COMMANDS; i++) {
        const int d = letters_apart(word, strlen(word), commands[i].name);
        if (d < least) {
            meant = commands[i].name;
            least = d;
        }
    }
    if (meant) return usage_error("unknown command %s; is it %s?", word, meant);
    return usage_error("unknown command %s; h3av help lists them%s", word, "");
}

int args_parse(cli *c, int argc, char **argv)
{
    bool only_args = false;
    int st = 0;

    set_defaults(c);
    if (argc < 2) {
        args_usage(stderr, CMD_NONE);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        c->cmd = CMD_HELP;
        return 0;
    }
    c->cmd = strcmp(argv[1], "--version") == 0 ? CMD_VERSION : args_command(argv[1]);
    if (c->cmd == CMD_NONE) return unknown_command(argv[1]);
    if (c->cmd == CMD_SERVE) c->rq.checkpoint_every = c->serve.checkpoint_every;
    for (int i = 2; i < argc && st == 0; i++) {
        if (!only_args && strcmp(argv[i], "--") == 0)
            only_args = true;
        else if (!only_args && argv[i][0] == '-' && argv[i][1])
            st = parse_option(c, argc, argv, &i);
        else if (c->n_args < 2)
            c->arg[c->n_args++] = argv[i];
        else
            st = unexpected(c, argv[i]);
    }
    if (st) return st;
    connect(c);
    return c->wants_help ? 0 : check_args(c);
}

void args_free(cli *c)
{
    while (c->n_owned)
        free(c->owned[--c->n_owned]);
}
