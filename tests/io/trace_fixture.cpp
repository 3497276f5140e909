#include "tests/io/trace_fixture.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "io/crash_guard.hpp"
#include "io/trace_writer.hpp"
#include "run/trace/attention_reference.hpp"
#include "sim/core/numbers.hpp"
#include "tests/support/paths.hpp"

namespace kvsim::test {
namespace {

/// A tensor of numbers in (-1, 1) that depend on `seed` and the index.
Tensor noise(ElementType type, std::array<int64_t, 3> shape, uint64_t seed) {
  Tensor tensor(type, shape);
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(2 * uniform(seed, i, 0, 0) - 1);
  narrow(type, values.data(), tensor.count(), tensor.data());
  return tensor;
}

h5::Handle variable_text() {
  h5::Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

h5::Handle owner_of(hid_t file, const std::string& object) {
  return h5::Handle(H5Oopen(file, object.c_str(), H5P_DEFAULT));
}

void write_attribute(hid_t owner, const char* name, hid_t type, hid_t memory, const void* value,
                     hid_t space) {
  if (H5Aexists(owner, name) > 0) H5Adelete(owner, name);
  const h5::Handle attribute(H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
  REQUIRE(attribute.valid());
  REQUIRE(H5Awrite(attribute.get(), memory, value) >= 0);
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvsim-test-XXXXXX").string();
  REQUIRE(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TraceInfo small_info() {
  TraceInfo info;
  info.model = "small";
  info.source = "{\"how\": \"test\"}";
  info.num_layers = 3;
  info.num_query_heads = 4;
  info.num_kv_heads = 2;
  info.head_dim = 8;
  info.hidden_size = 12;
  info.latent_size = 5;
  info.prompt_len = 10;
  info.total_len = 16;
  info.attention_scale = 0.25;
  for (int64_t p = 0; p < 16; ++p) info.query_position.push_back(p);
  info.layers = {0, 2};
  info.spans = {{"defense", 1, 4}, {"directive", 4, 9}};
  info.rope.inv_freq = {1, 0.1, 0.01, 0.001};
  info.rope.interleaved = true;
  info.layer_rope[2] = {{0.5, -0.25}, false, 3, 1.25};
  info.has_residual_norm = true;
  info.check_position = {3, 15};
  return info;
}

LayerTrace small_layer(const TraceInfo& info, int layer, ElementType type) {
  LayerTrace trace;
  const auto seed = static_cast<uint64_t>(layer) * 10;
  trace.info = &info;
  trace.layer = layer;
  trace.scale = layer == 2 ? 0.5 : info.attention_scale;
  trace.q = noise(type, {4, 16, 8}, seed);
  trace.k = noise(type, {2, 16, 8}, seed + 1);
  trace.v = noise(type, {2, 16, 6}, seed + 2);
  trace.wo = noise(type, {4, 6, 12}, seed + 3);
  for (int i = 0; i < 16; ++i) trace.residual_norm.push_back(1.5f + static_cast<float>(i));
  if (layer == 2) {
    trace.softcap = 5;
    trace.sliding_window = 7;
    trace.attention_sink = {0.5f, -1.0f, 2.0f, 0.0f};
  }
  const std::vector<double> outputs = attention_outputs(trace, info.check_position);
  trace.check_output.assign(outputs.begin(), outputs.end());
  return trace;
}

void write_small_trace(const std::string& path, ElementType type) {
  static std::map<ElementType, std::string> written;  // the same bytes every time
  if (written.count(type) > 0) return write_bytes(path, written[type]);
  const TraceInfo info = small_info();
  TraceWriter writer(path, info);
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
  for (int i = 0; i < 16; ++i) {
    ids.push_back(100 + i);
    texts.push_back(i == 5 ? "\xC3\xA9t\xC3\xA9" : i == 6 ? "" : " t" + std::to_string(i));
  }
  writer.write_tokens(ids, texts);
  for (const int layer : info.layers) writer.write_layer(small_layer(info, layer, type));
  writer.commit();
  written[type] = read_bytes(path);
}

void write_trace(const std::string& path, const TraceInfo& info,
                 std::span<const LayerTrace> layers) {
  TraceWriter writer(path, info);
  for (const LayerTrace& layer : layers) writer.write_layer(layer);
  writer.commit();
}

Editor::Editor(const std::string& path) : file_(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT)) {
  REQUIRE(file_.valid());
}

void Editor::remove(const std::string& object) {
  REQUIRE(H5Ldelete(file(), object.c_str(), H5P_DEFAULT) >= 0);
}

void Editor::remove_attribute(const std::string& object, const char* name) {
  REQUIRE(H5Adelete(owner_of(file(), object).get(), name) >= 0);
}

void Editor::integer(const std::string& object, const char* name, int64_t value) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  write_attribute(owner_of(file(), object).get(), name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value,
                  space.get());
}

void Editor::real(const std::string& object, const char* name, double value) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  write_attribute(owner_of(file(), object).get(), name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value,
                  space.get());
}

void Editor::text(const std::string& object, const char* name, const std::string& value) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  const h5::Handle type = variable_text();
  const char* pointer = value.c_str();
  write_attribute(owner_of(file(), object).get(), name, type.get(), type.get(), &pointer,
                  space.get());
}

void Editor::null_text(const std::string& object, const char* name) {
  const h5::Handle space(H5Screate(H5S_SCALAR));
  const h5::Handle type = variable_text();
  const char* pointer = nullptr;
  write_attribute(owner_of(file(), object).get(), name, type.get(), type.get(), &pointer,
                  space.get());
}

void Editor::array(const std::string& object, const char* name,
                   const std::vector<int64_t>& values) {
  const hsize_t length = values.size();
  const h5::Handle space(H5Screate_simple(1, &length, nullptr));
  write_attribute(owner_of(file(), object).get(), name, H5T_STD_I64LE, H5T_NATIVE_INT64,
                  values.data(), space.get());
}

void Editor::dataset(const std::string& object, hid_t type, const h5::Shape& shape, hid_t memory,
                     const void* data, const Storage& storage) {
  if (H5Lexists(file(), object.c_str(), H5P_DEFAULT) > 0) remove(object);
  const std::vector<hsize_t> lengths(shape.begin(), shape.end());
  // Chunks may be longer than an axis only if the axis may grow.
  const std::vector<hsize_t> most(lengths.size(), H5S_UNLIMITED);
  const h5::Handle space(H5Screate_simple(static_cast<int>(lengths.size()), lengths.data(),
                                          storage.chunk.empty() ? nullptr : most.data()));
  const h5::Handle properties(H5Pcreate(H5P_DATASET_CREATE));
  if (!storage.chunk.empty()) {
    const std::vector<hsize_t> chunk(storage.chunk.begin(), storage.chunk.end());
    H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
  }
  if (storage.shuffle) H5Pset_shuffle(properties.get());
  if (storage.gzip > 0) H5Pset_deflate(properties.get(), static_cast<unsigned>(storage.gzip));
  if (storage.fletcher32) H5Pset_fletcher32(properties.get());
  const h5::Handle links(H5Pcreate(H5P_LINK_CREATE));
  H5Pset_create_intermediate_group(links.get(), 1);
  const h5::Handle id(H5Dcreate2(file(), object.c_str(), type, space.get(), links.get(),
                                 properties.get(), H5P_DEFAULT));
  REQUIRE(id.valid());
  if (data != nullptr)
    REQUIRE(H5Dwrite(id.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
}

void Editor::integers(const std::string& object, const std::vector<int64_t>& values) {
  dataset(object, H5T_STD_I64LE, {static_cast<int64_t>(values.size())}, H5T_NATIVE_INT64,
          values.data());
}

void Editor::texts(const std::string& object, const std::vector<const char*>& values) {
  const h5::Handle type = variable_text();
  dataset(object, type.get(), {static_cast<int64_t>(values.size())}, type.get(), values.data());
}

void Editor::set_float(const std::string& object, int64_t index, float value) {
  const h5::Handle id(H5Dopen2(file(), object.c_str(), H5P_DEFAULT));
  const h5::Handle space(H5Dget_space(id.get()));
  std::vector<float> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
  H5Dread(id.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  values.at(static_cast<size_t>(index)) = value;
  REQUIRE(H5Dwrite(id.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
}

void Editor::store_again(const std::string& object, const Storage& storage) {
  h5::Handle type;
  std::vector<char> raw;
  std::vector<hsize_t> lengths(8);
  std::string encoding;
  {
    const h5::Handle id(H5Dopen2(file(), object.c_str(), H5P_DEFAULT));
    type = h5::Handle(H5Dget_type(id.get()));
    const h5::Handle space(H5Dget_space(id.get()));
    lengths.resize(
        static_cast<size_t>(H5Sget_simple_extent_dims(space.get(), lengths.data(), nullptr)));
    raw.resize(H5Tget_size(type.get()) *
               static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())));
    H5Dread(id.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data());
    if (H5Aexists(id.get(), "encoding") > 0) encoding = "bfloat16";
  }
  dataset(object, type.get(), h5::Shape(lengths.begin(), lengths.end()), type.get(), raw.data(),
          storage);
  if (!encoding.empty()) text(object, "encoding", encoding);
}

void Editor::external_link(const std::string& object, const std::string& target_file,
                           const char* target) {
  REQUIRE(H5Lcreate_external(target_file.c_str(), target, file(), object.c_str(), H5P_DEFAULT,
                             H5P_DEFAULT) >= 0);
}

void Editor::soft_link(const std::string& object, const char* target) {
  REQUIRE(H5Lcreate_soft(target, file(), object.c_str(), H5P_DEFAULT, H5P_DEFAULT) >= 0);
}

void Editor::group(const std::string& object) {
  REQUIRE(h5::Handle(H5Gcreate2(file(), object.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT))
              .valid());
}

Thrown error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return {error.what(), error.fault()};
  }
  FAIL("no error was thrown");
  return {};
}

std::string refusal_of(Fault fault, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    CHECK(error.fault() == fault);
    return error.what();
  }
  return "";
}

void check_refused(const Outcome& outcome, int status, const std::string& message) {
  INFO(outcome.err);
  CHECK(outcome.status == status);
  CHECK_THAT(outcome.err, Catch::Contains(message));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

Outcome run_kvsim(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string command = std::string("cd ") + kSourceDir + " && " + kProgram + " " +
                              arguments + " >" + (folder / "out") + " 2>" + (folder / "err");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_bytes(folder / "out"),
          read_bytes(folder / "err")};
}

Synthesized::Synthesized(const std::string& more) {
  const Outcome outcome = run_kvsim("synth -o " + trace +
                                    " --prompt 60 --steps 12 --head-dim 16 --hidden 32 " + more);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
}

Outcome Synthesized::replay(const std::string& arguments) const {
  return run_kvsim("replay " + trace + " -o " + results + " " + arguments);
}

int status_of(const std::string& err, const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, SIG_DFL);
    report_crashes_while_reading();
    try {
      action();
    } catch (const Error& error) {
      _exit(static_cast<int>(error.fault()));
    } catch (...) {
      _exit(99);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace kvsim::test
