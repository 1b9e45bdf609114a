"""The same pipeline on a cluster: stages that open themselves in any process, and the job that submits them."""
