// Only for its CRDs (config/crd/volcano/bases): `go mod download` brings the folder; nothing of it is compiled.
module nanochat-npu/tests/plane/volcano

go 1.25.0

require volcano.sh/volcano v1.15.1
