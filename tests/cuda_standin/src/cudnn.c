/* cuDNN: every graph has one plan, whose workspace is CUDA_STANDIN_CUDNN_WORKSPACE bytes (0 unless set; made up, for what
 * a card would take is not known); with CUDA_STANDIN_REAL_CUDNN graphs are cuDNN's own, and only their execution is played.
 * Recurrent layers have their real layout of weights and take the real memory. */
#include "cards.h"
#include "real_cudnn.h"
#include "sizes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t standin_cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t standin_cudnnGetCudartVersion(void) { return 13000; }
int standin_cudnnGetProperty(int type, int *value) {
    *value = type == 0 ? CUDNN_VERSION / 10000 : type == 1 ? CUDNN_VERSION / 100 % 100 : CUDNN_VERSION % 100;
    return 0;
}
const char *standin_cudnnGetErrorString(int status) {
    return status ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_SUCCESS";
}
void standin_cudnnGetLastErrorString(char *text, size_t length) {
    if (length) *text = 0;
}
int standin_cudnnGetStream(void *handle, void **stream) {
    *stream = NULL;
    return 0;
}

/* ---- Graphs of operations: convolutions and attention. cudnnBackendAttributeType_t and ...AttributeName_t: */

enum { TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15, TYPE_INT32 = 23 };
enum {
    CONFIG_INTERMEDIATES = 301,
    CONFIG_KNOBS = 302,
    CONFIG_WORKSPACE = 303,
    PLAN_WORKSPACE = 402,
    GRAPH_ENGINES = 802,
    ENGINE_KNOBS = 1302,
};

/* Kinds of descriptors, and those of their attributes that torch gives in place of a card: a handle. */
enum { ENGINE = 2, HEURISTICS = 4, GRAPH_HANDLE = 800, PLAN_HANDLE = 400 };
enum { ENGINE_DEVICE = 1307, HEURISTICS_DEVICE = 204, PLAN_DEVICE = 407 };

/* Operations of the kinds from the one to the other convolve. */
enum { CONVOLVING_FIRST = 10, CONVOLVING_LAST = 12 };
enum { GRAPH_OPERATIONS = 801, HEURISTICS_GRAPH = 201, ENGINE_GRAPH = 1300, CONFIG_ENGINE = 300, PLAN_CONFIG = 401 };

/* Descriptors of the real cuDNN, by their addresses; the newest of a place counts. Those of a graph without a
 * convolution are played: attention's engines are compiled by NVRTC, of which the stand-in has no more than torch asks. */
typedef struct {
    void *descriptor;
    int kind, is_played;
} known_t;

static known_t known[1 << 16];

static known_t *slot_of(void *descriptor) { return &known[((uintptr_t)descriptor >> 4) % (1 << 16)]; }

static int kind_of(void *descriptor) {
    known_t *found = slot_of(descriptor);
    return found->descriptor == descriptor ? found->kind : 0;
}

static int is_played(void *descriptor) {
    known_t *found = slot_of(descriptor);
    return !real_cudnn() || (found->descriptor == descriptor && found->is_played);
}

static int convolves(int64_t count, void *const *operations) {
    for (int64_t i = 0; i < count; i++) {
        int kind = kind_of(operations[i]);
        if (!kind) return 1; /* forgotten: better an error of the real one than a plan that nobody made */
        if (kind >= CONVOLVING_FIRST && kind <= CONVOLVING_LAST) return 1;
    }
    return 0;
}

static void play(void *descriptor) { slot_of(descriptor)->is_played = 1; }

int standin_cudnnBackendCreateDescriptor(int kind, void **descriptor) {
    if (!real_cudnn()) {
        *descriptor = calloc(1, 8);
        return 0;
    }
    int status = real_cudnn()->create(kind, descriptor);
    if (!status) *slot_of(*descriptor) = (known_t){*descriptor, kind, 0};
    return status;
}
int standin_cudnnBackendDestroyDescriptor(void *descriptor) {
    if (real_cudnn()) return real_cudnn()->destroy(descriptor);
    free(descriptor);
    return 0;
}
int standin_cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) {
    const real_cudnn_t *real = real_cudnn();
    if (!real || name == GRAPH_HANDLE) return 0;
    void *const *given = values;
    if (name == GRAPH_OPERATIONS && !convolves(count, given)) play(descriptor);
    int follows = name == HEURISTICS_GRAPH || name == ENGINE_GRAPH || name == CONFIG_ENGINE || name == PLAN_CONFIG;
    if (follows && is_played(given[0])) play(descriptor);
    if (is_played(descriptor)) return 0;
    if (name == PLAN_HANDLE) return real->set(descriptor, PLAN_DEVICE, TYPE_DESCRIPTOR, 1, &real->device);
    return real->set(descriptor, name, type, count, values);
}
int standin_cudnnBackendFinalize(void *descriptor) {
    if (is_played(descriptor)) return 0;
    const real_cudnn_t *real = real_cudnn();
    int kind = kind_of(descriptor);
    if (kind == HEURISTICS) real->set(descriptor, HEURISTICS_DEVICE, TYPE_DESCRIPTOR, 1, &real->device);
    if (kind == ENGINE) real->set(descriptor, ENGINE_DEVICE, TYPE_DESCRIPTOR, 1, &real->device);
    return real->finalize(descriptor);
}
int standin_cudnnBackendExecute(void *handle, void *plan, void *pack) { return 0; }
int standin_cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values) {
    if (!is_played(descriptor)) return real_cudnn()->get(descriptor, name, type, wanted, count, values);
    if (real_cudnn() && type == TYPE_DESCRIPTOR && values)
        for (int64_t i = 0; i < wanted; i++) play(((void **)values)[i]);
    int is_list = name == CONFIG_INTERMEDIATES || name == CONFIG_KNOBS || name == ENGINE_KNOBS;
    int is_number = type == TYPE_INT64 || type == TYPE_INT32;
    if (count) *count = !is_list && (is_number || type == TYPE_DESCRIPTOR); /* one engine, one configuration, no notes */
    if (!is_number || !values || wanted < 1) return 0;
    int64_t value = 0;
    if (name == CONFIG_WORKSPACE || name == PLAN_WORKSPACE) value = bytes_setting("CUDA_STANDIN_CUDNN_WORKSPACE", 0);
    if (name == GRAPH_ENGINES) value = 1;
    if (type == TYPE_INT64)
        *(int64_t *)values = value;
    else
        *(int32_t *)values = value;
    return 0;
}

/* ---- Sizes. */

SIZE_OF(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, 8, size_t, 0)
SIZE_OF(cudnnGetBatchNormalizationBackwardExWorkspaceSize, 10, size_t, 0)
SIZE_OF(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, 5, size_t, 0)
SIZE_OF(cudnnGetCTCLossWorkspaceSize, 8, size_t, WORK)
SIZE_OF(cudnnGetCTCLossWorkspaceSize_v8, 5, size_t, WORK)

/* ---- Recurrent layers. */

typedef struct {
    int type, dimensions, size[8];
} tensor_t; /* a descriptor of cudnnCreateTensorDescriptor; build.py gives it room */

enum { RELU, TANH, LSTM, GRU };                                  /* cudnnRNNMode_t */
enum { STANDARD, PERSISTENT, PERSISTENT_DYNAMIC, PERSISTENT_SMALL }; /* cudnnRNNAlgo_t */

typedef struct {
    float chance;
} dropout_t;

typedef struct {
    int algorithm, cell, biases, directions, type, input, hidden, projection, layers, drops;
} recurrent_t;

typedef struct {
    int steps, batch, packed;
    size_t rows; /* steps of all sequences together */
} sequence_t;

/* The generator's state for each thread that the card runs at once. */
int standin_cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
    *bytes = (size_t)card()->multiprocessors * card()->threads_per_multiprocessor * 24;
    return 0;
}
int standin_cudnnSetDropoutDescriptor(dropout_t *dropout, void *handle, float chance, void *states, size_t bytes,
                                      unsigned long long seed) {
    dropout->chance = chance;
    return 0;
}
int standin_cudnnRestoreDropoutDescriptor(dropout_t *dropout, void *handle, float chance, void *states, size_t bytes,
                                          unsigned long long seed) {
    dropout->chance = chance;
    return 0;
}

static size_t bytes_of(int type) { /* cudnnDataType_t: float, double, half, bfloat16 */
    return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4;
}
static int gates_of(const recurrent_t *layer) { return layer->cell == LSTM ? 4 : layer->cell == GRU ? 3 : 1; }
static int output_of(const recurrent_t *layer) { return layer->projection ? layer->projection : layer->hidden; }

int standin_cudnnSetRNNDescriptor_v8(recurrent_t *layer, int algorithm, int cell, int biases, int direction, int input_mode,
                                     int type, int precision, int math, int input, int hidden, int projection, int layers,
                                     const dropout_t *dropout, unsigned flags) {
    int projected = projection != hidden ? projection : 0, drops = dropout && dropout->chance > 0;
    *layer = (recurrent_t){algorithm, cell, biases != 0, direction ? 2 : 1, type, input, hidden, projected, layers, drops};
    return 0;
}
int standin_cudnnSetRNNDataDescriptor(sequence_t *sequence, int type, int layout, int steps, int batch, int width,
                                      const int *lengths, void *padding) {
    size_t rows = 0;
    for (int i = 0; i < batch; i++) rows += lengths[i];
    *sequence = (sequence_t){steps, batch, layout == 1, rows};
    return 0;
}

/* A matrix of a layer: its height and width; linear layers are numbered by gate, those of the input first. */
static void shape_of(const recurrent_t *layer, int pseudo_layer, int linear, int *rows, int *columns) {
    int gates = gates_of(layer);
    int below = pseudo_layer < layer->directions ? layer->input : output_of(layer) * layer->directions;
    *rows = linear == 2 * gates ? layer->projection : layer->hidden;
    *columns = linear == 2 * gates ? layer->hidden : linear < gates ? below : output_of(layer);
}

/* Where a matrix or bias begins, in elements: all matrices in order, then all biases. */
static size_t place_of(const recurrent_t *layer, int pseudo_layer, int linear, int is_bias) {
    int gates = gates_of(layer), all = 2 * gates + (layer->projection != 0), layers = layer->layers * layer->directions;
    size_t place = 0;
    for (int p = 0; p < layers; p++)
        for (int l = 0; l < all; l++) {
            if (!is_bias && p == pseudo_layer && l == linear) return place;
            int rows, columns;
            shape_of(layer, p, l, &rows, &columns);
            place += (size_t)rows * columns;
        }
    if (!is_bias || !layer->biases) return place;
    return place + ((size_t)pseudo_layer * 2 * gates + linear) * layer->hidden;
}

int standin_cudnnGetRNNWeightSpaceSize(void *handle, const recurrent_t *layer, size_t *bytes) {
    *bytes = place_of(layer, layer->layers * layer->directions, 0, 1) * bytes_of(layer->type);
    return 0;
}
int standin_cudnnGetRNNWeightParams(void *handle, const recurrent_t *layer, int pseudo_layer, size_t space, char *weights,
                                    int linear, tensor_t *matrix, void **matrix_at, tensor_t *bias, void **bias_at) {
    int rows, columns, projects = linear == 2 * gates_of(layer);
    shape_of(layer, pseudo_layer, linear, &rows, &columns);
    char *at = weights + place_of(layer, pseudo_layer, linear, 0) * bytes_of(layer->type);
    if (matrix) *matrix = (tensor_t){layer->type, 3, {1, rows, columns}};
    if (matrix_at) *matrix_at = rows && columns ? at : NULL;
    at = weights + place_of(layer, pseudo_layer, linear, 1) * bytes_of(layer->type);
    if (bias) *bias = (tensor_t){layer->type, 3, {1, rows, 1}};
    if (bias_at) *bias_at = layer->biases && !projects ? at : NULL;
    return 0;
}

/* The formulas of gpudash/memory/predicting/recurrent_layers.py, which were asked of cuDNN itself. */

static size_t rounded(size_t size, size_t to) { return (size + to - 1) / to * to; }
static size_t least(size_t one, size_t other) { return one < other ? one : other; }
static size_t most(size_t one, size_t other) { return one > other ? one : other; }
static size_t part(const recurrent_t *layer, size_t numbers) { return rounded(numbers * bytes_of(layer->type), 32); }

static size_t unpacked(const recurrent_t *layer, const sequence_t *sequence, int times) {
    if (sequence->packed) return 0;
    size_t rows = sequence->rows, states = (size_t)layer->layers * layer->directions * sequence->batch;
    size_t taken = part(layer, rows * layer->input) + part(layer, layer->directions * rows * output_of(layer));
    taken += 2 * part(layer, states * output_of(layer));
    return times * (taken + (layer->cell == LSTM ? 2 * part(layer, states * layer->hidden) : 0));
}
static size_t of_states(const recurrent_t *layer, const sequence_t *sequence, int persists, int gates) {
    size_t one = (size_t)layer->layers * sequence->batch * layer->hidden, all = one * layer->directions;
    size_t taken = persists ? part(layer, 2 * one) : part(layer, gates * all);
    return taken + (layer->cell == LSTM ? part(layer, 2 * all) : 0) + (layer->directions == 2 ? part(layer, 4 * one) : 0);
}
static size_t forward(const recurrent_t *layer, const sequence_t *sequence, int persists) {
    int gates = gates_of(layer);
    size_t rows = sequence->rows, wide = rows * layer->hidden;
    size_t taken = unpacked(layer, sequence, 1) + of_states(layer, sequence, persists, gates);
    if (layer->directions == 2)
        taken += part(layer, 2 * gates * wide) + part(layer, 4 * wide);
    else {
        size_t at_once = persists ? rows : least(rows, (size_t)256 * sequence->batch);
        taken += part(layer, gates * at_once * layer->hidden) + (layer->drops ? part(layer, wide) : 0);
    }
    if (layer->projection) taken += part(layer, layer->directions * wide);
    return taken + (persists && layer->cell == LSTM ? part(layer, 16 * wide) : 0);
}
static size_t wave(const recurrent_t *layer, const sequence_t *sequence) {
    int batch = sequence->batch, steps = batch == 1 ? 32 : batch <= 8 ? 16 : batch <= 16 ? 8 : batch <= 96 ? 4 : 2;
    if (batch > 16 && sequence->steps >= 128 && card()->major >= 8) steps = 8;
    return ((size_t)steps * layer->layers + most(steps, 8)) * batch;
}
static size_t backward(const recurrent_t *layer, const sequence_t *sequence, int algorithm) {
    int persists = algorithm != STANDARD, kept = layer->cell == LSTM ? 4 : layer->cell == GRU ? 6 : 1;
    size_t rows = sequence->rows, wide = rows * layer->hidden, widest = rows * most(layer->input, layer->hidden);
    size_t levels = least(layer->layers, 2), taken = unpacked(layer, sequence, 2) + of_states(layer, sequence, persists, 1);
    if (layer->directions == 2)
        taken += part(layer, 4 * widest) + part(layer, 2 * levels * wide);
    else {
        taken += part(layer, widest);
        if (persists)
            taken += part(layer, levels * wide);
        else
            taken += part(layer, levels == 1 ? wide : least(rows, wave(layer, sequence)) * layer->hidden);
    }
    if (layer->projection) taken += part(layer, layer->directions * wide);
    if (!persists) return taken;
    size_t floor = algorithm == PERSISTENT ? (size_t)(2432 + sequence->batch) * layer->hidden : 0;
    return taken + part(layer, most(8 * wide, floor)) + part(layer, kept * wide);
}
int standin_cudnnGetRNNTempSpaceSizes(void *handle, const recurrent_t *layer, int training, const sequence_t *sequence,
                                      size_t *workspace, size_t *reserve) {
    int layers = layer->layers, directions = layer->directions, major = card()->major;
    int has_one = layer->type == 9 || (layer->algorithm == PERSISTENT && major >= 10);
    int algorithm = has_one ? STANDARD : layer->algorithm;
    size_t streams = major == 8 && directions == 1 && layers > 1 ? 0 : (size_t)layers * directions * (8 << 20);
    size_t lengths = sequence->packed ? 0 : 2 * rounded(4 * sequence->batch, 16);
    size_t matrices = part(layer, place_of(layer, layers * directions, 0, 0));
    size_t rows = most(forward(layer, sequence, algorithm != STANDARD), backward(layer, sequence, algorithm));
    if (workspace) *workspace = streams + 256 + lengths + rows + matrices;
    if (!reserve) return 0;
    size_t state = directions * sequence->rows * layer->hidden, between = layers - 1;
    size_t kept = part(layer, (layer->cell == LSTM ? 4 : layer->cell == GRU ? 6 : 1) * state * layers);
    if (layer->cell == LSTM) kept += part(layer, state * layers);
    if (layer->projection)
        kept += part(layer, state * layers) + part(layer, directions * sequence->rows * layer->projection * layers);
    size_t bits = (size_t)directions * sequence->steps * sequence->batch * output_of(layer);
    size_t masks = layer->drops ? directions * between * rounded((bits + 7) / 8, 32) : 0;
    *reserve = training ? 256 + kept + part(layer, between * state) + masks : 0;
    return 0;
}
int standin_cudnnGetTensorNdDescriptor(const tensor_t *tensor, int wanted, int *type, int *dimensions, int *sizes,
                                       int *strides) {
    *type = tensor->type, *dimensions = tensor->dimensions;
    int stride = 1;
    for (int i = tensor->dimensions - 1; i >= 0; i--) {
        if (i < wanted) sizes[i] = tensor->size[i], strides[i] = stride;
        stride *= tensor->size[i];
    }
    return 0;
}
int standin_cudnnGetFilterNdDescriptor(const tensor_t *filter, int wanted, int *type, int *format, int *dimensions,
                                       int *sizes) {
    int strides[8];
    *format = 0;
    return standin_cudnnGetTensorNdDescriptor(filter, wanted, type, dimensions, sizes, strides);
}
