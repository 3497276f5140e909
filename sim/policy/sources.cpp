#include "sim/policy/sources.hpp"

#include <algorithm>
#include <cctype>

namespace kvsim {
namespace {

bool is_arxiv(const std::string& paper) {
  return !paper.empty() && std::isdigit(static_cast<unsigned char>(paper[0])) != 0;
}

bool part_of_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; }

/// Does the text have the name as words of its own? "KVzip" is none in "KVzipPress".
bool names(std::string_view text, std::string_view name) {
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !part_of_a_word(text[at - 1])) &&
        (end == text.size() || !part_of_a_word(text[end])))
      return true;
  }
  return false;
}

}  // namespace

const std::vector<Source>& sources() {
  static const std::vector<Source> listed = {
      {"AdaKV",
       "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM "
       "Inference",
       "Feng, Yuan and Lv, Junlin and Cao, Yukun and Xie, Xike and Zhou, S. Kevin", "2024",
       "2407.11550", "https://github.com/FFY0/AdaKV"},
      {"Attention Matching", "Fast KV Compaction via Attention Matching",
       "Zweiger, Adam and others", "2026", "2602.16284",
       "https://github.com/adamzweiger/compaction"},
      {"CAKE", "CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences",
       "Qin, Ziran and Cao, Yuchen and Lin, Mingbao and Hu, Wen and Fan, Shixuan and Cheng, Ke and "
       "Lin, Weiyao and Li, Jianguo",
       "2025", "2503.12491", "https://github.com/antgroup/cakekv"},
      {"CAOTE",
       "CAOTE: KV Cache Selection for LLMs via Attention Output Error-Based Token Eviction",
       "Goel, Raghavv and Park, Junyoung and Gagrani, Mukul and Jones, Dalton and Morse, Matthew "
       "and Langston, Harper and Lee, Mingu and Lott, Chris",
       "2025", "2504.14051", ""},
      {"CaM", "CaM: Cache Merging for Memory-efficient LLMs Inference",
       "Zhang, Yuxin and Du, Yuxuan and Luo, Gen and Zhong, Yunshan and Zhang, Zhenyu and Liu, "
       "Shiwei and Ji, Rongrong",
       "2024", "https://openreview.net/forum?id=LCTmppB165", "https://github.com/zyxxmu/cam"},
      {"Compactor",
       "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores",
       "Chari, Vivek and Van Durme, Benjamin", "2025", "2507.08143", ""},
      {"CriticalKV",
       "Identify Critical KV Cache in LLM Inference from an Output Perturbation Perspective",
       "Feng, Yuan and Lv, Junlin and Cao, Yukun and Xie, Xike and Zhou, S. Kevin", "2025",
       "2502.03805", ""},
      {"CurDKV", "Value-Guided KV Compression for LLMs via Approximated CUR Decomposition",
       "Sengupta, Ayan and Chaudhary, Siddhant and Chakraborty, Tanmoy", "2025", "2509.15038", ""},
      {"D2O",
       "D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of Large "
       "Language Models",
       "Wan, Zhongwei and others", "2024", "2406.13035", "https://github.com/AIoT-MLSys-Lab/D2O"},
      {"DefensiveKV", "Taming the Fragility of KV Cache Eviction in LLM Inference",
       "Feng, Yuan and Guo, Haoyu and Lv, Junlin and Zhou, S. Kevin and Xie, Xike", "2025",
       "2510.13334", "https://github.com/FFY0/DefensiveKV"},
      {"DuoAttention",
       "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads",
       "Xiao, Guangxuan and others", "2024", "2410.10819", ""},
      {"Expected Attention",
       "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries "
       "Distribution",
       "Devoto, Alessio and Jeblick, Maximilian and J{\\'e}gou, Simon", "2025", "2510.00636", ""},
      {"FastGen", "Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs",
       "Ge, Suyu and Zhang, Yunan and Liu, Liyuan and Zhang, Minjia and Han, Jiawei and Gao, "
       "Jianfeng",
       "2023", "2310.01801", ""},
      {"G-KV", "G-KV: Decoding-Time KV Cache Eviction with Global Attention",
       "Liao, Mengqi and others", "2025", "2512.00504", "https://github.com/microsoft/G-KV"},
      {"H2O",
       "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
       "Zhang, Zhenyu and others", "2023", "2306.14048", "https://github.com/FMInference/H2O"},
      {"KVCompose", "KVCompose: Efficient Structured KV Cache Compression with Composite Tokens",
       "Akulov, Dmitry and others", "2025", "2509.05165", ""},
      {"KVMerger",
       "Model Tells You Where to Merge: Adaptive KV Cache Merging for LLMs on Long-Context Tasks",
       "Wang, Zheng and Jin, Boxiao and Yu, Zhongzhi and Zhang, Minjia", "2024", "2407.08454", ""},
      {"KVgrad", "", "", "", "https://openreview.net/forum?id=cg1wTCJjjk", ""},
      {"KVzap", "KVzap: Fast, Adaptive, and Faithful KV Cache Pruning",
       "J{\\'e}gou, Simon and Jeblick, Maximilian", "2026", "2601.07891", ""},
      {"KVzip", "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
       "Kim, Jang-Hyun and others", "2025", "2505.23416", "https://github.com/snu-mllab/KVzip"},
      {"KeepKV",
       "KeepKV: Achieving Periodic Lossless KV Cache Compression for Efficient LLM Inference",
       "Tian, Yuxuan and Wang, Zihan and Peng, Yebo and Yuan, Aomufei and Wang, Zhiming and Yi, "
       "Bairen and Liu, Xin and Cui, Yong and Yang, Tong",
       "2025", "2504.09936", "https://github.com/kkvcache/KeepKV"},
      {"KeyDiff",
       "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in "
       "Resource-Constrained Environments",
       "Park, Junyoung and others", "2025", "2504.15364", ""},
      {"Knorm", "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
       "Devoto, Alessio and Zhao, Yu and Scardapane, Simone and Minervini, Pasquale", "2024",
       "2406.11430", "https://github.com/alessiodevoto/l2compress"},
      {"LAQ", "Lookahead Q-Cache: Achieving More Consistent KV Cache Eviction via Pseudo Query",
       "Wang, Yixuan and others", "2025", "2505.20334",
       "https://github.com/noforit/Lookahead_Q-Cache"},
      {"LAVa", "LAVa: Layer-wise KV Cache Eviction with Dynamic Budget Allocation",
       "Shen, Yiqun and others", "2025", "2509.09754", "https://github.com/MGDDestiny/Lava"},
      {"LM-Infinite",
       "LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models",
       "Han, Chi and others", "2023", "2308.16137", ""},
      {"LagKV", "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important",
       "Liang, Manlai and Zhang, JiaMing and Li, Xiong and Li, Jinlong", "2025", "2504.04704", ""},
      {"MorphKV",
       "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs",
       "Ghadia, Ravi and Kumar, Avinash and Jain, Gaurav and Nair, Prashant J. and Das, Poulami",
       "2025", "2503.00979", ""},
      {"OpenVINO", "OpenVINO GenAI", "", "", "",
       "https://github.com/openvinotoolkit/openvino.genai"},
      {"PyramidInfer",
       "PyramidInfer: Pyramid KV Cache Compression for High-throughput LLM Inference",
       "Yang, Dongjie and Han, Xiaodong and Gao, Yan and Hu, Yao and Zhang, Shilin and Zhao, Hai",
       "2024", "2405.12532", "https://github.com/mutonix/pyramidinfer"},
      {"PyramidKV",
       "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling",
       "Cai, Zefan and others", "2024", "2406.02069",
       "https://github.com/Zefan-Cai/KVCache-Factory"},
      {"Quest", "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference",
       "Tang, Jiaming and Zhao, Yilong and Zhu, Kan and Xiao, Guangxuan and Kasikci, Baris and "
       "Han, Song",
       "2024", "2406.10774", "https://github.com/mit-han-lab/Quest"},
      {"R-KV", "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models",
       "Cai, Zefan and others", "2025", "2505.24133", "https://github.com/Zefan-Cai/R-KV"},
      {"ReST-KV",
       "ReST-KV: Robust KV Cache Eviction with Layer-wise Output Reconstruction and "
       "Spatial-Temporal Smoothing",
       "An, Yongqi and Lu, Chang and Zhu, Kuan and Yu, Tao and Zhao, Chaoyang and Wu, Hong and "
       "Tang, Ming and Wang, Jinqiao",
       "2026", "2605.08840", "https://github.com/an-yongqi/rest-kv"},
      {"RoCo",
       "On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language Model "
       "Inference",
       "Ren, Siyu and Zhu, Kenny Q.", "2024", "2402.06262", ""},
      {"Scissorhands",
       "Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache "
       "Compression at Test Time",
       "Liu, Zichang and others", "2023", "2305.17118", ""},
      {"SnapKV", "SnapKV: LLM Knows What You are Looking for Before Generation",
       "Li, Yuhong and others", "2024", "2404.14469", "https://github.com/FasterDecoding/SnapKV"},
      {"SpecKV", "Draft-based Approximate Inference for LLMs",
       "Galim, Kevin and Ewer, Ethan and Kang, Wonjun and Lee, Minjae and Koo, Hyung Il and Lee, "
       "Kangwook",
       "2025", "2506.08373", "https://github.com/furiosa-ai/draft-based-approx-llm"},
      {"StreamingLLM", "Efficient Streaming Language Models with Attention Sinks",
       "Xiao, Guangxuan and Tian, Yuandong and Chen, Beidi and Han, Song and Lewis, Mike", "2023",
       "2309.17453", "https://github.com/mit-han-lab/streaming-llm"},
      {"TOVA", "Transformers are Multi-State RNNs",
       "Oren, Matanel and Hassid, Michael and Yarden, Nir and Adi, Yossi and Schwartz, Roy", "2024",
       "2401.06104", "https://github.com/schwartz-lab-NLP/TOVA"},
      {"TriAttention", "TriAttention: Efficient Long Reasoning with Trigonometric KV Compression",
       "Mao, Weian and Lin, Xi and Huang, Wei and Xie, Yuxin and Fu, Tianfu and Zhuang, Bohan and "
       "Han, Song and Chen, Yukang",
       "2026", "2604.04921", "https://github.com/WeianMao/triattention"},
      {"VATP",
       "Attention Score is not All You Need for Token Importance Indicator in KV Cache Reduction: "
       "Value Also Matters",
       "Guo, Zhiyu and Kamigaito, Hidetaka and Watanabe, Taro", "2024", "2406.12335",
       "https://github.com/guozhiyu/vatp"},
      {"kvpress",
       "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries "
       "Distribution",
       "Devoto, Alessio and Jeblick, Maximilian and J{\\'e}gou, Simon", "2025", "2510.00636",
       "https://github.com/NVIDIA/kvpress"},
      {"kvsim", "kvsim: what each later token would have lost if the KV cache had been compressed",
       "", "", "", ""}};
  return listed;
}

std::vector<const Source*> sources_named(std::string_view text) {
  std::vector<const Source*> found;
  for (const Source& source : sources())
    if (names(text, source.name)) found.push_back(&source);
  return found;
}

std::string bibtex_key(const Source& source) {
  std::string key;
  for (const char c : source.name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

std::string bibtex(const Source& source) {
  std::string text = "@misc{" + bibtex_key(source);
  const auto field = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += std::string(",\n  ") + name + " = {" + value + "}";
  };
  // Capitals stay as they are in every style.
  field("title", "{" + (source.title.empty() ? source.name : source.title) + "}");
  field("author", source.authors);
  field("year", source.year);
  if (is_arxiv(source.paper)) {
    field("eprint", source.paper);
    field("archivePrefix", "arXiv");
    field("url", "https://arxiv.org/abs/" + source.paper);
  } else {
    field("url", source.paper.empty() ? source.code : source.paper);
  }
  if (source.title.empty())
    field("note", "kvsim knows the address alone: title and authors are there");
  return text + "\n}\n";
}

}  // namespace kvsim
