"""The same pipeline on a cluster: stages that open themselves in whatever process runs them, and the job that submits them."""
