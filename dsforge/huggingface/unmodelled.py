"""Architectures that are not modelled, by `model_type`, and why.

All language models of transformers 5.23 that the tables leave out, and some that live on the hub
alone. A test keeps the list complete. They are refused by name: read as Llama-like ones they would
get a wrong size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HYBRIDS: Final = """
    bailing_hybrid bailing_moe_linear bamba falcon_h1 falcon_mamba gla granitemoehybrid griffin
    hgrn hgrn2 hymba jamba jet_nemotron kimi_linear kolibri1 lfm2 lfm2_moe lfm3 mamba mamba2
    mamba_ssm minicpm_sala minimax minimax_text_01 MiniMaxText01 nemotron_flash nemotron_h
    olmo_hybrid phi4flash plamo2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next
    qwen4_exp_text recurrent_gemma retnet ring_linear rwkv rwkv5 rwkv6 rwkv6qwen2 rwkv7 samba
    stripedhyena xlstm zamba zamba2 zaya
"""
OTHER_DECODERS: Final = """
    afmoe apertus aquila3 arctic aria_text axk1 axk2 bailing_moe bailing_moe_v2 beam
    bert-generation biogpt bitnet blt codegen cohere2_moe cohere_compass_text cpmant ctrl deci
    deepseek_v32 deepseek_v4 diffllama doge dots3_note_text dream exaone exaone_moe flint
    gemma3n_text
    gemma4_assistant gemma4_text gemma4_unified_assistant gemma4_unified_text glm4_moe_lite
    glm_moe_dsa gpt_neox_japanese gpt_pangu gpt_refact granite_swa granitemoe_swa grok hrm_text
    hunyuan hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling2_text inkling_text jais jamba_moe
    jetmoe laguna llada LLaDAModelLM longcat_flash longcat_flash_ngram mellum mimo_v2_flash
    minicpm3 minimax_m3_vl_text mixformer-sequential modernbert-decoder moshi musicgen
    musicgen_melody nanochat nemotron-nas openai-gpt openelm pangu persimmon phimoe_v2 qwen
    skywork_moe solar_open step3 telechat telechat2 trocr xglm xlnet xmodel youtu
"""
ENCODERS: Final = """
    albert bge big_bird camembert chinese_roberta clip_text convbert data2vec-text deberta
    deberta-v2 distilbert electra ernie esm esmc eurobert flaubert fnet funnel gte
    gte-modernbert ibert jina_embeddings_v3 layoutlm longformer luke megatron-bert mobilebert
    modernbert modernvbert mpnet mra neomme new nomic_bert nomic_bert_moe nystromformer
    perceiver reformer rembert roberta roberta-prelayernorm roc_bert roformer squeezebert tapas
    ultrabert ultravbert xlm xlm-roberta xlm-roberta-xl xmod yoso
"""
ENCODER_DECODERS: Final = """
    audioflamingo3 bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt glmasr
    granite_speech granite_speech_plus led longt5 m2m_100 marian mbart moss_transcribe_diarize
    mt5 musicflamingo mvp nemo_speechlm nllb-moe pegasus pegasus_x plbart prophetnet qwen2_audio
    qwen3_asr seamless_m4t seamless_m4t_v2 switch_transformers t5gemma t5gemma2 umt5
    vibevoice_asr voxtral voxtral_realtime whisper
"""
MULTIMODAL: Final = """
    aria aya aya_vision blip blip-2 bunny-llama chameleon chatglmv cogagent cogvlm
    cohere2_vision cohere_compass cosmos3_edge cosmos3_omni deepseek_ocr deepseek_ocr2
    deepseek_vl deepseek_vl_hybrid deepseek_vl_v2 diffusion_gemma dots3_note emu3
    ernie4_5_vl_moe evolla exaone4_5 fast_vlm florence2 fun_asr_nano fuyu gemma3 gemma3n gemma4
    gemma4_unified git glm46v glm4v glm4v_moe glm5_next glm_ocr glmga got_ocr2 granite4_vision
    granite_docling hunyuan_vl hyperclovax_vision_v2 idefics idefics2 idefics3 idefics4 inkling2
    inkling_mm_model instructblip instructblipvideo internvl internvl_chat janus kimi_k25
    kosmos-2 kosmos-2.5 kyutai_speech_to_text lfm2_vl lfm3_vl lighton_ocr llava llava_llama
    llava_next llava_next_video llava_onevision llava_qwen minicpm_ocr minicpmo minicpmv
    minicpmv4_6 minicpmv4_7 minimax_m3_vl mistral3 mistral4 mistral_large4 mllama molmo molmo2
    moondream moondream1 mplug_owl2 muse_glimmer muse_spark nemotron_h_omni omni ovis2
    paddleocr_vl paligemma perception_lm phi3_v phi4_multimodal phi4mm pi0 pix2struct
    pp_chart2table pp_formulanet qianfan_ocr qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl
    qwen2_vl qwen3_5 qwen3_5_moe qwen3_omni_moe qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe
    qwen4_exp qwen_vl shieldgemma2 smolvlm step3p7 udop unlimited_ocr video_llama_3 video_llava
    vipllava vision-encoder-decoder yi_vl
"""

WHY: Final = {
    HYBRIDS: "it has state-space, linear-attention, convolution or recurrent layers",
    OTHER_DECODERS: "it is a decoder whose layers differ from those that are",
    ENCODERS: "it is an encoder, not a causal language model",
    ENCODER_DECODERS: "it is an encoder-decoder, for translation, summaries or speech",
    MULTIMODAL: "it has towers beside its language model",
}
UNMODELLED: Mapping[str, str] = {name: why for names, why in WHY.items() for name in names.split()}
