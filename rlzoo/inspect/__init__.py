"""A checkpoint under the microscope: what every objective does to the same frozen answers."""
