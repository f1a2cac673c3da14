"""A table of three rows that takes seconds, for tests of `reproduce`."""

from bertzoo_jax.configs.tables import paper

_SMALL = {
  'encoder.hidden_size': 16,
  'encoder.num_heads': 2,
  'encoder.num_layers': 1,
  'encoder.intermediate_size': 32,
  'length': 16,
  'batch_size': 8,
  'tokenizer.vocab_size': 300,
  'run.log_every': 1,
  'run.tensorboard': False,
  'run.compile_cache': '',
}


def get_config(scale='tiny'):
  made = paper.table(
    scale,
    paper='Nobody et al. 2020',
    name='Table 1',
    title='Rows of seconds',
    system='bert:tiny',
    columns=(
      paper.held_out('MLM', 'mlm_accuracy'),
      paper.held_out('ppl', 'perplexity', unit=''),
      paper.parameters(),
      paper.task('books', 'own:classify', 'accuracy', 'macro_f1', **_TASK),
      paper.not_supported('coreference', 'a scorer of antecedents'),
      paper.average('Avg', 'MLM', 'books'),
    ),
    rows=(
      paper.row('whole', 50.0, 4.5, '110', '80.1/79.0', '70', 60, fields=_SMALL),
      paper.row(
        'deeper',
        '[mem] 51.0',
        4.25,
        'figure',
        '81.1/80.0',
        fields={**_SMALL, 'masking.rate': 0.3},
        init='whole',
        note='It begins with the row above.',
      ),
      paper.row('theirs', 52.0, '', '', '', '', '', system=None, note='Of another paper.'),
    ),
    varies={'masking.rate': '§1: 15 % and 30 %'},
    tiny_steps=6,
  )
  for row in ('whole', 'deeper'):
    made.rows[row].experiment.run.eval_every = 3  # a curve of two points
  return made


_TASK = {
  'source.files.train': 'two_books.tsv',
  'length': 16,
  'steps': 4,
  'seeds': (0, 1),
  'run.tensorboard': False,
  'run.compile_cache': '',
}
