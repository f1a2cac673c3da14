"""Classes of transformers that read the weights from left to right, with is_decoder=True."""

CLASSES = {
  'bert': 'BertLMHeadModel',
  'electra': 'ElectraForCausalLM',
  'ernie': 'ErnieForCausalLM',
  'roberta': 'RobertaForCausalLM',
}
