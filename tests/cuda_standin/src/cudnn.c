/* cuDNN: every graph has one plan, whose workspace is CUDA_STANDIN_CUDNN_WORKSPACE bytes (0 unless set; made up, for what
 * a card would take is not known). Recurrent layers have their real layout of weights. */
#include "cards.h"
#include "sizes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t standin_cudnnGetVersion(void) { return 92000; }
size_t standin_cudnnGetCudartVersion(void) { return 13000; }
int standin_cudnnGetProperty(int type, int *value) {
    *value = type == 0 ? 9 : type == 1 ? 20 : 0; /* 9.20.0, of torch 2.13; 2.11 was built with 9.19 */
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

int standin_cudnnBackendCreateDescriptor(int type, void **descriptor) {
    *descriptor = calloc(1, 8);
    return 0;
}
int standin_cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return 0;
}
int standin_cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values) {
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
SIZE_OF(cudnnDropoutGetStatesSize, 1, size_t, WORK)
SIZE_OF(cudnnGetCTCLossWorkspaceSize, 8, size_t, WORK)
SIZE_OF(cudnnGetCTCLossWorkspaceSize_v8, 5, size_t, WORK)

/* ---- Recurrent layers. */

typedef struct {
    int type, dimensions, size[8];
} tensor_t; /* a descriptor of cudnnCreateTensorDescriptor; build.py gives it room */

typedef struct {
    int cell, biases, directions, type, input, hidden, projection, layers;
} recurrent_t;

typedef struct {
    int steps, batch;
} sequence_t;

static size_t bytes_of(int type) { /* cudnnDataType_t: float, double, half, bfloat16 */
    return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4;
}
static int gates_of(const recurrent_t *layer) { return layer->cell == 2 ? 4 : layer->cell == 3 ? 3 : 1; }
static int output_of(const recurrent_t *layer) { return layer->projection ? layer->projection : layer->hidden; }

int standin_cudnnSetRNNDescriptor_v8(recurrent_t *layer, int algorithm, int cell, int biases, int direction, int input_mode,
                                     int type, int precision, int math, int input, int hidden, int projection, int layers,
                                     void *dropout, unsigned flags) {
    int projected = projection != hidden ? projection : 0;
    *layer = (recurrent_t){cell, biases != 0, direction ? 2 : 1, type, input, hidden, projected, layers};
    return 0;
}
int standin_cudnnSetRNNDataDescriptor(sequence_t *sequence, int type, int layout, int steps, int batch, int width,
                                      const int *lengths, void *padding) {
    *sequence = (sequence_t){steps, batch};
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
/* Made up, of the order of what a layer keeps for its backward pass. */
int standin_cudnnGetRNNTempSpaceSizes(void *handle, const recurrent_t *layer, int training, const sequence_t *sequence,
                                      size_t *workspace, size_t *reserve) {
    size_t step = (size_t)sequence->batch * layer->hidden * gates_of(layer) * layer->directions * bytes_of(layer->type);
    if (workspace) *workspace = 2 * step;
    if (reserve) *reserve = training ? step * sequence->steps * layer->layers : 0;
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
