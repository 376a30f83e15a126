"""Which keys each release of DeepSpeed and Megatron-LM knows: data, and how it is made."""
