// Results of small operators. Every operator of torch that has a kernel for CUDA first runs as it is, so that it asks
// for the memory that it always asks for. Then torch's kernel for the CPU runs on the same bytes, and what it gives is
// written where a GPU would have written it.
//
// What is not computed, because a tensor is too large or the CPU has no such kernel, is zero. Integers and flags are
// computed from these zeros as from any number. A fraction is not: 0 / 0 would be no number, and a guard would strike
// that strikes on no GPU; so what depends on a fraction that was not computed is not computed either.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <set>

namespace {

using at::Tensor;
using c10::Argument;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using Stack = std::vector<IValue>;

// What memory.c gives: the largest tensor of an operator that is computed, in bytes; how device memory becomes zero;
// and what this thread reads of a device next, where it reads a count.
struct Machine {
    size_t largest;
    void (*zero)(uintptr_t address, size_t bytes);
    void (*answer)(const int64_t *count);
} machine;

// ---- Which floating-point numbers were not computed, by their addresses.

class Uncomputed {
public:
    void mark(uintptr_t begin, uintptr_t end, bool uncomputed) {
        if (begin == end) return;
        const std::lock_guard<std::mutex> guard(lock);
        auto next = ranges.upper_bound(begin);
        if (next != ranges.begin() && std::prev(next)->second > begin) {
            auto before = std::prev(next);
            const uintptr_t beyond = before->second;
            before->second = begin;
            if (before->first == begin) ranges.erase(before);
            if (beyond > end) ranges[end] = beyond;
        }
        next = ranges.lower_bound(begin);
        while (next != ranges.end() && next->first < end) {
            const uintptr_t beyond = next->second;
            next = ranges.erase(next);
            if (beyond > end) ranges[end] = beyond;
        }
        if (uncomputed) ranges[begin] = end;
    }
    bool overlaps(uintptr_t begin, uintptr_t end) {
        const std::lock_guard<std::mutex> guard(lock);
        const auto next = ranges.lower_bound(end);
        return next != ranges.begin() && std::prev(next)->second > begin;
    }

private:
    std::mutex lock;
    std::map<uintptr_t, uintptr_t> ranges; // begin and end; they do not overlap
};

Uncomputed &uncomputed = *new Uncomputed; // never destroyed: operators run while a process ends

bool is_fractional(const Tensor &tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

uintptr_t address(const Tensor &tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()); }

// The bytes from a tensor's first number to its last.
size_t span(const Tensor &tensor) {
    if (!tensor.numel()) return 0;
    size_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); i++) last += (tensor.size(i) - 1) * tensor.stride(i);
    return (last + 1) * tensor.itemsize();
}

void mark(const Tensor &tensor, bool is_uncomputed) {
    const bool unknown = is_uncomputed && is_fractional(tensor);
    // What lies between the rows of a view stays what it is.
    if (unknown || tensor.is_non_overlapping_and_dense())
        uncomputed.mark(address(tensor), address(tensor) + span(tensor), unknown);
}

bool is_uncomputed(const Tensor &tensor) {
    return is_fractional(tensor) && uncomputed.overlaps(address(tensor), address(tensor) + span(tensor));
}

// ---- The tensors of a call.

bool is_on_gpu(const Tensor &tensor) { return tensor.defined() && tensor.is_cuda(); }

// Whether its numbers lie in a GPU's memory, one after another or in steps.
bool is_dense(const Tensor &tensor) {
    return is_on_gpu(tensor) && tensor.layout() == c10::kStrided && tensor.has_storage();
}

bool is_readable(const Tensor &tensor) {
    if (!tensor.defined()) return true;
    if (!tensor.is_cpu() && !tensor.is_cuda()) return false;
    return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor._is_zerotensor() &&
           (tensor.is_cpu() || span(tensor) <= machine.largest);
}

void add_tensors(const IValue &value, std::vector<Tensor> &found) {
    if (value.isTensor()) {
        if (value.toTensor().defined()) found.push_back(value.toTensor());
    } else if (value.isTensorList()) {
        for (const Tensor &tensor : value.toTensorVector())
            if (tensor.defined()) found.push_back(tensor);
    } else if (value.isOptionalTensorList()) {
        for (const auto &tensor : value.toOptionalTensorVector())
            if (tensor && tensor->defined()) found.push_back(*tensor);
    }
}

bool is_written(const Argument &argument) {
    const c10::AliasInfo *alias = argument.alias_info();
    if (!alias) return false;
    if (alias->isWrite()) return true;
    for (const auto &inner : alias->containedTypes())
        if (inner.isWrite()) return true;
    return false;
}

// The same numbers for the host, which can read a device's memory here.
Tensor on_host(const Tensor &tensor) {
    if (!is_on_gpu(tensor)) return tensor;
    const auto options = tensor.options().device(c10::kCPU).requires_grad(false);
    Tensor same = at::from_blob(reinterpret_cast<void *>(address(tensor)), tensor.sizes(), tensor.strides(), options);
    same._set_conj(tensor.is_conj());
    same._set_neg(tensor.is_neg());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) same.unsafeGetTensorImpl()->set_wrapped_number(true);
    return same;
}

Tensor input_on_host(const Tensor &tensor) {
    if (!is_on_gpu(tensor) || !is_uncomputed(tensor)) return on_host(tensor);
    return at::zeros(tensor.sizes(), tensor.options().device(c10::kCPU).requires_grad(false));
}

// Random numbers that the GPU's seed and position decide, and that leave the host's generators alone.
IValue generator(const IValue &given, c10::DeviceIndex device) {
    const at::Generator gpus =
        given.isGenerator() ? given.toGenerator() : at::globalContext().defaultGenerator({c10::kCUDA, device});
    const uint64_t seed = gpus.current_seed() * 0x9E3779B97F4A7C15ull + gpus.get_offset();
    return at::detail::createCPUGenerator(seed);
}

IValue argument_on_host(const Argument &argument, const IValue &value, c10::DeviceIndex device) {
    const auto convert = is_written(argument) ? on_host : input_on_host;
    if (value.isTensor()) return convert(value.toTensor());
    if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor &tensor : value.toTensorVector()) list.push_back(convert(tensor));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (const auto &tensor : value.toOptionalTensorVector())
            list.push_back(tensor ? std::make_optional(convert(*tensor)) : std::nullopt);
        return list;
    }
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (argument.name() == "generator") return generator(value, device);
    return value;
}

// ---- A call.

const std::set<std::string> OVERWRITING = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_",
                                           "aten::_foreach_zero_"};
const std::set<std::string> WITHOUT_NUMBERS = {"aten::empty", "aten::empty_strided"};
const std::set<std::string> LEFT_ALONE = {"aten::set_", "aten::resize_", "aten::record_stream", "aten::is_pinned",
                                          "aten::_pin_memory"};
const std::set<std::string> READING = {"aten::_local_scalar_dense", "aten::equal"};
const std::set<std::string> EQUAL = {"aten::eq", "aten::equal"};
const std::set<std::string> UNEQUAL = {"aten::ne"};

struct Call {
    const OperatorHandle &op;
    Stack &stack; // the results on it, once the operator has run
    Stack arguments;
    std::vector<Tensor> read, written; // of the arguments
    bool depends_on_uncomputed = false;

    Call(const OperatorHandle &op, Stack &stack)
        : op(op), stack(stack), arguments(stack.end() - op.schema().arguments().size(), stack.end()) {
        const bool overwrites = OVERWRITING.count(name()) || op.hasTag(at::Tag::nondeterministic_seeded);
        for (size_t i = 0; i < arguments.size(); i++) {
            const Argument &argument = op.schema().arguments()[i];
            const bool is_output = is_written(argument);
            if (is_output) add_tensors(arguments[i], written);
            if (!is_output || !(argument.kwarg_only() || overwrites)) add_tensors(arguments[i], read);
        }
        for (const Tensor &tensor : read)
            depends_on_uncomputed |= is_dense(tensor) && is_uncomputed(tensor);
    }

    const std::string &name() const { return op.schema().name(); }

    IValue &result(size_t i) { return stack[stack.size() - op.schema().returns().size() + i]; }

    bool shares_memory(const Tensor &tensor) const {
        for (const Tensor &other : read)
            if (other.has_storage() && tensor.is_alias_of(other)) return true;
        return false;
    }

    // New tensors among the results; the others are arguments that were written to, or parts of them.
    std::vector<Tensor> made() {
        std::vector<Tensor> all, fresh;
        for (size_t i = 0; i < op.schema().returns().size(); i++)
            if (!op.schema().returns()[i].alias_info()) add_tensors(result(i), all);
        for (const Tensor &tensor : all)
            if (is_dense(tensor) && !shares_memory(tensor)) fresh.push_back(tensor);
        return fresh;
    }

    // Whether no result can be computed, since each would be a fraction that depends on one that was not computed. What
    // linear algebra says of its success would not be true of zeros either.
    bool is_all_uncomputed(const std::vector<Tensor> &fresh) const {
        if (!depends_on_uncomputed) return false;
        if (name().rfind("aten::linalg_", 0) == 0 || name().rfind("aten::_linalg_", 0) == 0) return true;
        for (const Tensor &tensor : fresh)
            if (!is_fractional(tensor)) return false;
        for (const Tensor &tensor : written)
            if (!is_fractional(tensor)) return false;
        return true;
    }

    bool is_small(const std::vector<Tensor> &fresh) const {
        for (const auto *tensors : {&fresh, &written, &read})
            for (const Tensor &tensor : *tensors)
                if (!is_readable(tensor)) return false;
        return true;
    }

    // Compares numbers that were not computed: none of them equals another, except itself.
    bool compares_uncomputed() const {
        if (!depends_on_uncomputed || !(EQUAL.count(name()) || UNEQUAL.count(name()))) return false;
        return !arguments[1].isTensor() || !arguments[1].toTensor().is_same(arguments[0].toTensor());
    }

    Stack on_host_side() const {
        c10::DeviceIndex device = 0;
        for (const auto *tensors : {&read, &written})
            for (const Tensor &tensor : *tensors)
                if (is_on_gpu(tensor)) device = tensor.get_device();
        Stack host;
        for (size_t i = 0; i < arguments.size(); i++)
            host.push_back(argument_on_host(op.schema().arguments()[i], arguments[i], device));
        return host;
    }
};

// The host's numbers where the GPU's would be. A tensor whose size the numbers decide is made at that size; any other
// of another size holds something else on the host than on a GPU (what the backward pass needs), and is zero.
Tensor put(const Call &call, const Tensor &result, const Tensor &computed) {
    if (!is_on_gpu(result)) return result;
    const bool has_size = result.sizes() == computed.sizes();
    if (!has_size && !call.op.hasTag(at::Tag::dynamic_output_shape)) {
        machine.zero(address(result), span(result));
        return result;
    }
    Tensor target = has_size ? result : at::empty(computed.sizes(), result.options());
    on_host(target).copy_(computed);
    return target;
}

void put_all(Call &call, Stack &computed) {
    const auto &returns = call.op.schema().returns();
    for (size_t i = 0; i < returns.size(); i++) {
        if (returns[i].alias_info()) continue;
        IValue &result = call.result(i);
        if (result.isTensor()) {
            if (result.toTensor().defined()) result = put(call, result.toTensor(), computed[i].toTensor());
        } else if (result.isTensorList()) {
            c10::List<Tensor> list;
            for (size_t j = 0; j < result.toTensorVector().size(); j++)
                list.push_back(put(call, result.toTensorVector()[j], computed[i].toTensorVector()[j]));
            result = list;
        } else if (READING.count(call.name())) {
            result = computed[i];
        }
    }
}

// As torch's own code runs beneath autograd, unseen by profilers and by modes of the program, and without warnings.
class Unseen {
    class Silent : public c10::WarningHandler {
        void process(const c10::Warning &warning) override {}
    };
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard no_warnings{&silent};
    at::DisableRecordFunctionGuard no_records;
    c10::impl::ForceDispatchKeyGuard no_modes{
        DispatchKeySet(DispatchKey::BackendSelect), // which finds the device of a new tensor
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set};
};

bool compute(Call &call) {
    const Unseen unseen;
    try {
        Stack host = call.on_host_side();
        call.op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &host);
        put_all(call, host);
        return true;
    } catch (const std::exception &) { // such as an index out of range, which a GPU would assert later
        return false;
    }
}

// The count that an operator reads of the device before it makes its result, where numbers decide the size.
class Counted {
public:
    explicit Counted(const Call &call) {
        if (!call.op.hasTag(at::Tag::dynamic_output_shape) || call.depends_on_uncomputed || !call.is_small({})) return;
        const Unseen unseen;
        try {
            Stack host = call.on_host_side();
            call.op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &host);
            count = host[0].toTensor().size(0);
            machine.answer(&count);
        } catch (const std::exception &) { // as in `compute`, which comes to it later
        }
    }
    ~Counted() { machine.answer(nullptr); }
    Counted(const Counted &) = delete;
    Counted &operator=(const Counted &) = delete;

private:
    int64_t count = 0;
};

class Kernel : public c10::OperatorKernel {
public:
    Kernel(c10::SafeKernelFunction real, bool is_computable) : real(std::move(real)), is_computable(is_computable) {}

    void operator()(const OperatorHandle &op, DispatchKeySet keys, Stack *stack) {
        Call call(op, *stack);
        {
            const Counted counted(call);
            real.callBoxed(op, keys, stack);
        }
        const bool computed = settle(call);
        const bool uncertain = !computed || call.depends_on_uncomputed;
        for (const Tensor &tensor : call.made()) {
            if (!computed || (uncertain && is_fractional(tensor))) machine.zero(address(tensor), span(tensor));
            mark(tensor, uncertain);
        }
        for (const Tensor &tensor : call.written)
            if (is_dense(tensor)) mark(tensor, uncertain);
    }

    // Whether the call's results are what they should be now.
    bool settle(Call &call) const {
        std::vector<Tensor> fresh = call.made();
        if (fresh.empty() && call.written.empty() && !READING.count(call.name())) return false;
        if (!is_computable || call.is_all_uncomputed(fresh) || !call.is_small(fresh)) return false;
        if (!call.compares_uncomputed()) return compute(call);
        for (const auto *tensors : {&fresh, &call.written})
            for (const Tensor &tensor : *tensors) on_host(tensor).fill_(UNEQUAL.count(call.name()) > 0);
        return true;
    }

private:
    c10::SafeKernelFunction real;
    bool is_computable;
};

bool is_view(const c10::FunctionSchema &schema) {
    for (const Argument &result : schema.returns())
        if (result.alias_info() && !is_written(result)) return true;
    return false;
}

bool has_seed_without_generator(const OperatorHandle &op) {
    return op.hasTag(at::Tag::nondeterministic_seeded) && !op.schema().argumentIndexWithName("generator");
}

} // namespace

// Puts itself before every kernel for CUDA; once in a process.
extern "C" __attribute__((visibility("default"))) void
cuda_standin_compute_results(size_t largest, void (*zero)(uintptr_t, size_t), void (*answer)(const int64_t *)) {
    machine = {largest, zero, answer};
    const Unseen unseen; // torch warns of kernels that replace others
    auto &library = *new torch::Library(torch::Library::IMPL, "aten", DispatchKey::CUDA, __FILE__, __LINE__);
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        if (name.getNamespace() != std::optional<c10::string_view>("aten")) continue;
        const auto found = dispatcher.findSchema(name);
        if (!found || LEFT_ALONE.count(name.name) || is_view(found->schema())) continue;
        if (!found->hasKernelForDispatchKey(DispatchKey::CUDA) && name.name != "aten::copy_") continue;
        const bool is_computable = found->hasComputedKernelForDispatchKey(DispatchKey::CPU) &&
                                   !WITHOUT_NUMBERS.count(name.name) && !has_seed_without_generator(*found);
        auto real = found->getComputedKernelForDispatchKey(DispatchKey::CUDA);
        const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        auto kernel = std::make_unique<Kernel>(std::move(real), is_computable);
        library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    }
}
