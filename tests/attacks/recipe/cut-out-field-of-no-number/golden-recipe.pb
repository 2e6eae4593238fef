
~
7
5bert/encoder/layer_1/output/LayerNorm/batchnorm/add_1*(bert/encoder/layer_1/output/dense/kernel"Const*B
úÿÿÿ*(bert/encoder/layer_1/output/dense/kernel