"""The kubelet's gRPC messages: its protocol files, their licence (LICENSE), and what `make stubs` generates from them.
May not be edited but for fields that a later Kubernetes release has added."""
